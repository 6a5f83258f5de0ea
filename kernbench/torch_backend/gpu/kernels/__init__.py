"""What computes in the place of a GPU's kernels, where the CPU's are other ones, or missing."""
