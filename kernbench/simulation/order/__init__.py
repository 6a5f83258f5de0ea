"""What is touched by whom: where the order of accesses to memory is watched."""
