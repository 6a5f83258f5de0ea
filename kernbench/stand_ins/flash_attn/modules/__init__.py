"""The parts of ``flash_attn.modules``."""
