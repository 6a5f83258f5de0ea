"""The parts of ``flash_attn.losses``."""
