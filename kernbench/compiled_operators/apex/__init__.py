"""The compiled modules of ``apex``: functions over lists of tensors, gradients of weights that are added up, norms.

The kernels are those of the table of ``transformer_engine``, which took them over from apex.
"""
