"""``context_parallel`` for ranks that share a process and compute on CPU tensors.

torch replaces ``F.scaled_dot_product_attention`` in the process while a rank is inside the block, with the mesh of the caller
that came first, and knows the rings of the attention kernels for GPUs only. Here what replaces it asks which rank
calls; its ring is torch's own, around the CPU's kernel. On a mesh of CPUs too, where stock torch has no ring.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.torch_backend.gpu.device.devices import current_rank
from kernbench.torch_backend.gpu.kernels import fused_attention
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


RELIES_ON = (
    Reliance(
        f"{MODULE}._enable_context_parallel_dispatcher_impl", "entering a block calls it", parameters=("seq_dim", "mesh"),
        looked_up_by=(f"{MODULE}.context_parallel",),
    ),
    Reliance(
        f"{MODULE}._disable_context_parallel_dispatcher_impl", "leaving a block calls it",
        looked_up_by=(f"{MODULE}.context_parallel",),
    ),
    Reliance(
        f"{MODULE}._templated_ring_attention", "it goes around the ring with the kernel that it is given",
        parameters=("group", "seq_dim", "op", "query", "key", "value"),
    ),
    Reliance(
        f"{MODULE}._templated_ring_attention_backward", "and back",
        parameters=("group", "seq_dim", "op", "grad_out", "grad_out_name", "query", "key", "value", "out", "logsumexp"),
    ),
    Reliance(
        "torch.ops.aten", "kernels of the CPU's attention", has=(
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
    ),
)  # fmt: skip


class _Ring(torch.autograd.Function):
    """Attention over a ring. Shapes: q, k, v ``[batch, heads, sequence / members, head size]``."""

    @staticmethod
    def forward(
        simulation: Any, module: Any, mesh: Any, seq_dim: int, options: dict[str, Any], q: Any, k: Any, v: Any
    ) -> Any:
        out, logsumexp, *_ = module._templated_ring_attention(mesh.get_group(), seq_dim, _FORWARD, q, k, v, **options)
        simulation.save_for_backward(q, k, v, out, logsumexp)
        simulation.ring = module, mesh, seq_dim, options
        return out

    @staticmethod
    def backward(simulation: Any, grad_out: Any) -> Any:
        module, mesh, seq_dim, options = simulation.ring
        q, k, v, out, logsumexp = simulation.saved_tensors
        grads = module._templated_ring_attention_backward(
            mesh.get_group(), seq_dim, _BACKWARD, grad_out.contiguous(), "grad_out", q, k, v, out, logsumexp,
            **options, dropout_p=0.0,
        )  # fmt: skip
        return None, None, None, None, *grads[:3]


def install(patches: Patches, module: ModuleType) -> None:
    """Let the block say where a rank is, and the attention look there."""
    inside: dict[int | None, tuple[int, Any]] = {}

    def attention(
        query: object, key: object, value: object, attn_mask: object, dropout_p: float, is_causal: bool, scale: float | None,
        enable_gqa: bool,
    ) -> Any:  # fmt: skip
        place = inside.get(current_rank()) if inside else None
        if place is None:
            return None
        if attn_mask is not None or dropout_p or enable_gqa:
            raise KernbenchError(
                "context_parallel on simulated ranks takes neither attn_mask, dropout_p nor enable_gqa: repeat the "
                "key's heads before the call (repeat_interleave), use is_causal, and set dropout_p to 0"
            )
        seq_dim, mesh = place
        options = {"is_causal": is_causal, "scale": scale}
        return _Ring.apply(module, mesh, seq_dim, options, query, key, value)

    def enable(seq_dim: int, mesh: object) -> None:
        inside[current_rank()] = seq_dim, mesh
        fused_attention.go_around(attention)

    def disable() -> None:
        inside.pop(current_rank(), None)
        if not inside:
            fused_attention.go_around(None)

    patches.set(fused_attention, "ring", None)  # and so it will be again, whatever happens
    patches.set(module, "_enable_context_parallel_dispatcher_impl", enable)
    patches.set(module, "_disable_context_parallel_dispatcher_impl", disable)
