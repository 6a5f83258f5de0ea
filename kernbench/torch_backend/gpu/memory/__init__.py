"""The memory of simulated GPUs: what programs ask of it, and what they use it for."""
