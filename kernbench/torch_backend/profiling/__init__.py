"""``torch.profiler`` inside ranks: tables, events and traces in virtual time, with what the model says of the GPU.

- ``session``: what stands in for ``torch.autograd.profiler.profile``.
- ``notes``: what the host does meanwhile, as it is reported while it does it.
- ``timed_records``: torch's own records of calls, given the virtual times at which they began and ended.
- ``device_events``: what ran on the GPU, by the names that tools look for.
- ``kineto``: the trace file, in the format of torch's profiler.
"""
