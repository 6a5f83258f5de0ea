"""A stand-in for FlashAttention 3: its public functions, on the definitions of ``flash_attn``'s."""

__version__ = "3.0.0"
