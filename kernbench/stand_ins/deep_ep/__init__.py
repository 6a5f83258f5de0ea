"""``deep_ep``: tokens to the ranks of their experts and back, as collectives of ``torch.distributed`` that move the same bytes.

A token goes once to each rank that has an expert of it, and comes back as the sum of what these ranks make of it. Counts are
exchanged first, and read on the host, as the package's kernels have the host wait for them.

What the package does in one kernel of its own, whose buffers the others write to over NVLink and RDMA, is here an all-to-all
of the communication library, after a kernel that puts the tokens in order: times are those of these, UNVERIFIED against the
package's. Buffers take the memory that the package asks for. Not here: low latency, the elastic and hybrid buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .utils import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t"]
__version__ = "1.2.1"

Tensor = torch.Tensor
topk_idx_t = torch.int64

_PEERS = 8
"""Ranks of a node that reach one another over NVLink."""
_OF_A_TOKEN = 128 * (8 + 4) + 128 * 4 + 8
"""Bytes of a buffer for a token besides its numbers: 128 indices and weights, 128 scales, its origin (``config.hpp``)."""
_KEPT = {2: 256, 4: 256, 8: 256, 16: 288, 24: 288, 32: 288, 48: 288, 64: 288, 96: 480, 128: 560, 144: 720, 160: 720}
"""Tokens that a channel keeps for a peer, by the number of ranks (``Buffer.get_dispatch_config``)."""


@dataclass
class Config:
    """How a kernel is launched; of that only the size of buffers counts here."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 128

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffer that peers of the node write to."""
        nodes, peers = max(num_ranks // _PEERS, 1), min(num_ranks, _PEERS)
        slots = self.num_sms // 2 * peers
        return _aligned(
            slots * (4 * (2 * nodes + 3) + self.num_max_nvl_chunked_recv_tokens * (hidden_bytes + _OF_A_TOKEN))
        )

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of the buffer for other nodes."""
        if num_ranks <= _PEERS:
            return 0
        slots = 2 * (self.num_sms // 2) * (num_ranks // _PEERS)
        kept = self.num_max_rdma_chunked_recv_tokens
        return _aligned(slots * (4 * (2 * _PEERS + 2) + kept * (hidden_bytes + _OF_A_TOKEN + 16)))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 128) * 128


class _SentTokens:
    """How tokens have gone.

    Attributes:
        order: of each token that was sent the row it was, in the order of the ranks.
        sent, received: how many tokens went to each rank, and came from it.
        here: which tokens went to which rank.
    """

    def __init__(self, order: Tensor, sent: list[int], received: list[int], here: Tensor) -> None:
        self.order, self.sent, self.received, self.here = order, sent, received, here


class Buffer:
    """What a rank sends tokens with. See the package's own documentation for arguments that are not named here."""

    num_sms = 20

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
        num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        explicitly_destroy: bool = False, enable_shrink: bool = False, comm: object = None,
    ) -> None:  # fmt: skip
        if low_latency_mode:
            raise NotImplementedError("the stand-in for deep_ep has no low latency: use dispatch and combine")
        if group is None:
            raise NotImplementedError("the stand-in for deep_ep wants a process group, no communicator of MPI")
        self.group = group
        self.rank, self.group_size = dist.get_rank(group), dist.get_world_size(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self._memory: Tensor | None = torch.empty(num_nvl_bytes + num_rdma_bytes, dtype=torch.uint8, device="cuda")

    def destroy(self) -> None:
        """Give its memory back."""
        self._memory = None

    @staticmethod
    def is_sm90_compiled() -> bool:
        """As wheels for Hopper."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of the recommended configurations."""
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """What the current stream has been given so far."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The recommended one. Raises AssertionError for a number of ranks that there is none for."""
        if num_ranks not in _KEPT:
            raise AssertionError(f"Unsupported number of EP ranks: {num_ranks}")
        return Config(Buffer.num_sms, num_max_nvl_chunked_recv_tokens=_KEPT[num_ranks])

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: EventOverlap | None = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, EventOverlap]:  # fmt: skip
        """Tokens for each rank, each node (None in one node) and each expert; which token goes to which rank; an event.

        ``topk_idx``: ``[tokens, k]``, the experts of each token, -1: none.
        """
        _wait(previous_event)
        chosen = torch.zeros(topk_idx.shape[0], num_experts + 1, dtype=torch.bool, device=topk_idx.device)
        chosen.scatter_(1, torch.where(topk_idx < 0, num_experts, topk_idx), True)
        chosen = chosen[:, :num_experts]
        here = chosen.view(-1, self.group_size, num_experts // self.group_size).any(-1)
        nodes = None
        if self.group_size > _PEERS:
            nodes = here.view(-1, self.group_size // _PEERS, _PEERS).any(-1).sum(0, dtype=torch.int32)
        per_rank, per_expert = (each.sum(0, dtype=torch.int32) for each in (here, chosen))
        return per_rank, nodes, per_expert, here, _event(async_finish)

    def dispatch(
        self, x: object, handle: Any = None, num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Tensor | None = None, is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None, topk_idx: Tensor | None = None, topk_weights: Tensor | None = None,
        expert_alignment: int = 1, num_worst_tokens: int = 0, config: Config | None = None,
        previous_event: EventOverlap | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Tensor | None, Tensor | None, Any, Any, EventOverlap]:  # fmt: skip
        """Tokens ``[tokens, hidden]``, or in eight bits with their scales, to the ranks of their experts.

        Returns the tokens that have come, by the ranks they are from; their experts as this rank counts them (-1: another
        rank's) and weights; how many came for each expert; the handle; an event. With a ``handle`` they go as before.
        """
        if num_worst_tokens:
            raise NotImplementedError(
                "the stand-in for deep_ep has the host wait for counts: leave num_worst_tokens out"
            )
        _wait(previous_event)
        parts = x if isinstance(x, tuple) else (x,)
        indices = weights = counts = None
        if handle is None:
            if num_tokens_per_rank is None or is_token_in_rank is None or num_tokens_per_expert is None:
                raise AssertionError("a dispatch without a handle wants what get_dispatch_layout gives")
            local = num_tokens_per_expert.numel() // self.group_size
            asked = torch.cat((num_tokens_per_rank.view(-1, 1), num_tokens_per_expert.view(-1, local)), 1).contiguous()
            told = torch.empty_like(asked)
            dist.all_to_all_single(told, asked, group=self.group)
            received, sent = told.cpu(), num_tokens_per_rank.tolist()
            order = is_token_in_rank.t().nonzero()[:, 1]
            went = _SentTokens(order, sent, received[:, 0].tolist(), is_token_in_rank)
            counts = [-(-each // expert_alignment) * expert_alignment for each in received[:, 1:].sum(0).tolist()]
            if topk_idx is not None:
                first = self.rank * local
                indices = self._sent(topk_idx, went) - first
                away = (indices < 0) | (indices >= local)
                indices = indices.masked_fill(away, -1)
                if topk_weights is not None:
                    weights = self._sent(topk_weights, went).masked_fill(away, 0)
        else:
            went = handle
        came = tuple(self._sent(each, went) for each in parts)
        new = went if handle is None else None
        return came if isinstance(x, tuple) else came[0], indices, weights, counts, new, _event(async_finish)

    def combine(
        self, x: Tensor, handle: Any, topk_weights: Tensor | None = None, bias: object = None, config: Config | None = None,
        previous_event: EventOverlap | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Tensor, Tensor | None, EventOverlap]:  # fmt: skip
        """What has been made of tokens that came, back to where they are from, and summed there; their weights likewise."""
        _wait(previous_event)
        out = self._returned(x, handle)
        for each in bias if isinstance(bias, tuple) else (bias,):
            out = out if each is None else out + each.float()
        weights = None if topk_weights is None else self._returned(topk_weights, handle).to(topk_weights.dtype)
        return out.to(x.dtype), weights, _event(async_finish)

    def _sent(self, x: Tensor, went: _SentTokens) -> Tensor:
        rows = x[went.order]
        came = torch.empty((sum(went.received), *x.shape[1:]), dtype=x.dtype, device=x.device)
        narrow = x.dtype.itemsize == 1  # bytes are bytes: the library has no sums to make
        views = (came.view(torch.uint8), rows.view(torch.uint8)) if narrow else (came, rows)
        dist.all_to_all_single(*views, went.received, went.sent, group=self.group)
        return came

    def _returned(self, x: Tensor, went: _SentTokens) -> Tensor:
        """Sums in float32."""
        back = torch.empty((sum(went.sent), *x.shape[1:]), dtype=x.dtype, device=x.device)
        dist.all_to_all_single(back, x.contiguous(), went.sent, went.received, group=self.group)
        out = torch.zeros((went.here.shape[0], *x.shape[1:]), dtype=torch.float32, device=x.device)
        return out.index_add_(0, went.order, back.float())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("low_latency") or name == "clean_low_latency_buffer":
            raise AttributeError(
                f"the stand-in for deep_ep has no {name}: it has dispatch and combine", name=name, obj=self
            )
        raise AttributeError(name=name, obj=self)


def _wait(event: EventOverlap | None) -> None:
    if event is not None and event.event is not None:
        event.current_stream_wait()


def _event(wanted: bool) -> EventOverlap:
    return EventOverlap(EventHandle() if wanted else None)
