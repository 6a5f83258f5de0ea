"""Process groups of simulated ranks, as ``torch.distributed`` sees them."""
