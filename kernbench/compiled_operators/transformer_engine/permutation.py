"""Tokens to experts and back, by the indices of the experts that each token has; by maps it is Triton kernels of the
package's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.compiled_operators.transformer_engine.kernels import kernel, launch

Tensor = torch.Tensor


@kernel("permute(Tensor x, Tensor indices, Tensor! out, Tensor! places)", "out", "out", "indices", "indices", "places")
def _permute(x: Tensor, indices: Tensor, out: Tensor, places: Tensor) -> None:
    tokens, count = indices.shape
    order = indices.reshape(-1).argsort(stable=True)[: out.shape[0]]
    out.copy_(x[order // count])
    found = torch.full((count, tokens), -1, dtype=places.dtype)
    found[order % count, order // count] = torch.arange(len(order), dtype=places.dtype)
    places.copy_(found.view(-1))


@kernel("unpermute(Tensor x, Tensor places, Tensor? probs, Tensor! out)", "x", "places", "out")
def _unpermute(x: Tensor, places: Tensor, probs: Tensor | None, out: Tensor) -> None:
    rows = places.view(-1, out.shape[0]).long()
    found = torch.zeros(out.shape)
    for at, row in enumerate(rows):
        part = x[row.clamp(min=0)].float() * (row >= 0)[:, None]
        found += part if probs is None else part * probs[:, at, None].float()
    out.copy_(found)


@kernel(
    "unpermute_backward(Tensor grad, Tensor x, Tensor places, Tensor? probs, Tensor! dx, Tensor(p!)? dprobs)",
    "grad", "x", "places", "dx",
)  # fmt: skip
def _unpermute_backward(
    grad: Tensor, x: Tensor, places: Tensor, probs: Tensor | None, dx: Tensor, dprobs: Tensor | None
) -> None:
    given = grad.float()
    dx.zero_()
    for at, row in enumerate(places.view(-1, grad.shape[0]).long()):
        here = row >= 0
        part = given[here] if probs is None else given[here] * probs[here, at, None].float()
        dx[row[here]] = part.to(dx.dtype)
        if dprobs is not None:
            dprobs[:, at] = (given * x[row.clamp(min=0)].float()).sum(-1) * here


def moe_permute_fwd(
    input: Tensor,
    dtype: object,
    indices: Tensor,
    num_out_tokens: int,
    workspace: Sequence[Tensor],
    max_expanded_token_num: int,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Rows in the order of their experts; for each choice and token its row, -1 if it is dropped; and room to sort in."""
    if not workspace:
        workspace = [
            torch.empty(max_expanded_token_num, dtype=torch.int32, device=input.device) for _ in range(3)
        ]  # and what CUB asks for, which is not said
    tokens, count = indices.shape
    rows = num_out_tokens if num_out_tokens > 0 else tokens * count
    out = torch.empty((rows, input.shape[1]), dtype=input.dtype, device=input.device)
    places = torch.empty(tokens * count, dtype=torch.int32, device=input.device)
    launch("permute", input, indices, out, places)
    return out, places, list(workspace)


def moe_unpermute_fwd(
    input: Tensor, dtype: object, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int
) -> Tensor:
    """The sums of each token's rows, times their probabilities where there are any."""
    out = torch.empty((num_tokens, input.shape[1]), dtype=input.dtype, device=input.device)
    launch("unpermute", input, row_id_map, prob if prob.numel() else None, out)
    return out


moe_permute_bwd = moe_unpermute_fwd


def moe_unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, dtype: object, row_id_map: Tensor, prob: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the rows and of the probabilities."""
    weighted = prob.numel() > 0
    dx = torch.empty((input_fwd.shape[0], input_bwd.shape[1]), dtype=input_bwd.dtype, device=input_bwd.device)
    shape = prob.shape if weighted else (row_id_map.shape[0], 1)
    dprobs = torch.empty(shape, dtype=torch.float32, device=input_bwd.device)
    launch(
        "unpermute_backward",
        input_bwd,
        input_fwd,
        row_id_map,
        prob if weighted else None,
        dx,
        dprobs if weighted else None,
    )
    return dx, dprobs
