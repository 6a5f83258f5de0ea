"""What one feature of torch each needs to work for ranks that share a process."""
