"""What stands in the place of torch's own names in a rank: ``torch.cuda``, methods of tensors, classes, functions."""
