"""Which tensors are on a simulated GPU, and which of the host's are pinned."""
