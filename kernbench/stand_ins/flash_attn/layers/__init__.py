"""The parts of ``flash_attn.layers``."""
