"""The parts of ``flash_attn.ops.triton``."""
