"""What the wrappers for batches share: the plan of a call, which stays until the next one, and buffers of a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ._calls import Format, Tensor, dtype_of, factor, launch, out_of, refuse, refuse_positions

_BYTES = 8 << 20
"""Of the workspace that a wrapper has for whole numbers, on the GPU and on the host."""


@dataclass(frozen=True)
class PlannedAttention:
    """One call's shapes and how it attends.

    Attributes:
        ends_q: of the queries; None: ``each`` of every sequence.
        ends_k: of the keys, or of their pages.
        indices, last: the pages, and how full the last ones are; None: keys are packed.
        mask: which keys each query sees; None: as ``causal`` and ``left`` say.
        given, dtype: of the queries, of the results.
    """

    ends_q: Tensor | None
    ends_k: Tensor
    indices: Tensor | None
    last: Tensor | None
    mask: Tensor | None
    given: torch.dtype
    dtype: torch.dtype
    scale: float
    causal: bool
    left: int
    softcap: float
    each: int = 1


class Wrapper:
    """A batch whose plan is made before it runs."""

    def __init__(
        self, workspace: Tensor, layout: str, backend: str, graph: bool, buffers: dict[str, Tensor | None]
    ) -> None:
        name = type(self).__name__
        if layout not in ("NHD", "HND"):
            raise KeyError(f"Invalid kv_layout {layout!r}")
        self._name, self._kv_layout, self._backend = name, layout, backend
        self.device = workspace.device
        self._float_workspace_buffer = workspace
        self._int_workspace_buffer = torch.empty(_BYTES, dtype=torch.uint8, device=self.device)
        self._pin_memory_int_workspace_buffer = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=workspace.is_cuda)
        self._use_cuda_graph = graph
        self._of_graph = buffers
        self._plan: PlannedAttention | None = None
        missing = [each for each, value in buffers.items() if graph and value is None and not each.startswith("custom")]
        if missing:
            raise ValueError(f"{missing[0]} should be a tensor in cudagraph mode")

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether the plan is kept in buffers that a graph reads."""
        return self._use_cuda_graph

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        """Take other workspaces."""
        self._float_workspace_buffer, self._int_workspace_buffer = float_workspace_buffer, int_workspace_buffer

    def _kept(self, name: str, given: Tensor) -> Tensor:
        """A part of the plan on the GPU: in its buffer, for a graph."""
        buffer = self._of_graph.get(name)
        if not self._use_cuda_graph or buffer is None:
            return given.to(self.device, non_blocking=True)
        whole = not name.endswith(("indices_buf", "indices_buffer"))
        if len(given) > len(buffer) or (whole and len(given) != len(buffer)):
            raise ValueError(
                f"{name} holds {len(buffer)}, and {len(given)} are planned: the batch size should be fixed in cudagraph mode, "
                "and the size of the pages' indices should be less than or equal to that of their buffer"
            )
        buffer[: len(given)].copy_(given, non_blocking=True)
        return buffer

    def _mask(self, mask: Tensor | None, packed_mask: Tensor | None) -> Tensor | None:
        refuse(f"{self._name}.plan", packed_custom_mask=packed_mask)
        buffer = self._of_graph.get("custom_mask_buf")
        if mask is None or buffer is None or not self._use_cuda_graph:
            return mask
        raise NotImplementedError(f"the stand-in for flashinfer: {self._name} has no masks in cudagraph mode")

    def _replan(
        self, mode: str, causal: bool | None, left: int, softcap: float | None, scale: float | None, width: int
    ) -> None:
        refuse_positions(f"{self._name}.forward", mode)
        if self._plan is not None:
            self._plan = replace(
                self._plan, causal=self._plan.causal if causal is None else causal, left=left, softcap=softcap or 0.0,
                scale=width**-0.5 if scale is None else scale,
            )  # fmt: skip

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, lse: Tensor | None, return_lse: bool, scale: float,
        of_values: float, left: int | None,
    ) -> Any:  # fmt: skip
        plan = self._plan
        if plan is None:
            raise RuntimeError(f"{self._name}.plan() is to be called before run()")
        if q.dtype != plan.given:
            raise ValueError(f"queries are {q.dtype}, and {self._name}.plan() was given q_data_type {plan.given}")
        out = out_of(out, (*q.shape[:-1], v.shape[-1]), plan.dtype, q.device)
        sums = out_of(lse, tuple(q.shape[:-1]), torch.float32, q.device) if return_lse else None
        launch(
            "attend", q, k, v, plan.ends_q, plan.each, plan.ends_k, plan.indices, plan.last, plan.mask, plan.scale * scale,
            of_values, plan.causal, plan.left if left is None else left, plan.softcap, out, sums,
        )  # fmt: skip
        return out if sums is None else (out, sums)


def how(
    function: str, mode: str, scale: float | None, width: int, softcap: float | None, q: Format | None, o: Format | None
) -> tuple[float, float, torch.dtype]:
    """Scale, soft cap and the format of results of a plan."""
    refuse_positions(function, mode)
    return width**-0.5 if scale is None else scale, softcap or 0.0, dtype_of(o, dtype_of(q, torch.float16))


def scales(q: Any, k: Any, v: Any) -> tuple[float, float]:
    """Of scores and of values."""
    return factor(q, k), factor(v)
