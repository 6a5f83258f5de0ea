"""torch's own ``_DistTestBase`` (it is in the wheel; needs ``expecttest``), world 8, on gloo processes and on simulated ranks.

    python -m tests.torch_backend.torch_own [--side ranks|gloo] [--closed] [--shard START STEP] [--record] [name ...]

Prints one line per test. ``--closed`` leaves torch's conditions as they are (backend gloo, no GPU); else the gates that ask for
a backend's name and for GPUs are open on both sides. ``--record`` (with ``--side gloo``) writes the names that passed to the
list that ``test_torch_own.py`` holds simulated ranks to.
"""
