"""What is in tensors: computed when it is read, or, without data, known or assumed."""
