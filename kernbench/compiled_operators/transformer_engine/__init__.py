"""``transformer_engine_torch``, the compiled module below ``transformer_engine.pytorch``: its functions by definition
(ADR 0212).

The package's own Python runs unmodified: it makes and saves tensors, checks shapes, chooses layouts, communicates. What
it calls in C++ is here: functions with the C++'s arguments, which make the tensors that C++ makes and launch kernels of a table
(:mod:`~kernbench.compiled_operators.transformer_engine.kernels`).

Facts are those of ``transformer_engine/pytorch/csrc`` of github.com/NVIDIA/TransformerEngine (2.20).
"""
