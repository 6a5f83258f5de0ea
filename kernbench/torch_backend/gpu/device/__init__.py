"""The simulated GPUs of a rank: which it sees, the one that it drives, streams, random numbers."""
