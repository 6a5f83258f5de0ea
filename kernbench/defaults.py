"""What holds where the user says nothing. Here, so that the command line can tell it without importing what it is of."""

DEFAULT_SYSTEM = "sip8"
"""Name of the shipped system that runs have."""

FOLDED_ABOVE = 16
"""Without data, with more ranks than these one of each class of ranks that do the same is run."""

TARGETS = "sm_80, sm_90, sm_100, gfx942"
"""Examples of what kernels are compiled for, in words."""

LOG_LIMIT = 1_000_000
"""Operations that a log keeps."""

EPOCH = 1_577_836_800.0
"""``time.time()`` at virtual time 0: the first second of 2020, UTC."""
