"""Where tensors are: storages, and the allocators of the processes that have them."""
