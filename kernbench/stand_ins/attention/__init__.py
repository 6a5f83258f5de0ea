"""Attention as FlashAttention 2 and 3 define it, on torch's operations: their stand-ins, and operators of engines, share it."""
