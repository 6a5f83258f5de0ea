"""What ``torch.compile`` and CUDA graphs make of a rank's program on a simulated GPU."""
