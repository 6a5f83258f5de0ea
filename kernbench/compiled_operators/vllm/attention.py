"""``vllm.vllm_flash_attn``: FlashAttention 2 and 3 as vLLM builds them."""

from __future__ import annotations

from kernbench.compiled_operators.paged_attention import flash_attention_2, flash_attention_3

second, third = flash_attention_2("_vllm_fa2_C"), flash_attention_3("_vllm_fa3_C", sinks="s_aux")
