"""What a rank program touches: the context, tensors, handles, multiprocessing, distributed."""
