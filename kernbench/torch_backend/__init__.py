"""Real ``torch.distributed`` programs on simulated ranks.

While the ranks of a spawn run on carriers, torch's own distributed package works inside them: process groups of every
backend name become groups of simulated ranks, stores and sleeps are cooperative, clocks are virtual, and what torch and
Python keep per process is kept per rank. Outside that time torch is as it was.

This is the only room that touches torch's privates. Each module says in ``RELIES_ON`` what it relies on: a test walks that, and
``python -m kernbench.torch_backend.relies_on`` prints what of it is so in the torch that is installed.
"""
