"""The path of an operation of torch: seen at the dispatcher, planned once per signature, computed, placed, put on a stream.

`operators` has one row per operator, `recorder` is the path, `plans` what it knows of a signature that it has seen. What is
computed is `computing` or, without data, :mod:`kernbench.torch_backend.hollow.executor`. Features (races, weak memory, fills,
captures, reports) listen to its stages: `listening`.
"""
