"""What is in tensors: computed when it is looked at, or, without data, known or assumed."""
