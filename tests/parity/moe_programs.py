"""Routers of mixtures of experts as they are commonly written; each gives the sizes that it met."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, EXPERTS, TOP = 32, 8, 2


def loop_over_experts(rank: int, world: int, tokens: int) -> list[int]:
    """Every expert looks for its tokens in a mask: the way of Hugging Face's Mixtral. Tokens of each expert."""
    gate, experts = (
        nn.Linear(WIDTH, EXPERTS, bias=False).cuda(),
        nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)),
    )
    experts.cuda()
    x = torch.randn(tokens, WIDTH, device="cuda", requires_grad=True)
    weights, chosen = torch.topk(F.softmax(gate(x), dim=1), TOP, dim=-1)
    out = torch.zeros_like(x)
    mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    sizes = []
    for each in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        place, token = torch.where(mask[each].squeeze(0))
        sizes.append(len(token))
        found = experts[int(each)](x[None, token].reshape(-1, WIDTH)) * weights[token, place, None]
        out = out.index_add(0, token, found)
    out.sum().backward()
    return sizes


def routing_map(rank: int, world: int, tokens: int) -> dict[str, list[int]]:
    """A mask of tokens and experts, tokens by ``masked_select``: the way of Megatron-Core's all-to-all dispatcher."""
    logits, x = torch.randn(tokens, EXPERTS, device="cuda"), torch.randn(tokens, WIDTH, device="cuda")
    _, chosen = torch.topk(logits, TOP, dim=1)
    routed = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    counts = routed.sum(dim=0).long()
    everybodys = torch.empty(world * EXPERTS, dtype=counts.dtype, device="cuda")
    dist.all_gather_into_tensor(everybodys, counts)
    local = EXPERTS // world
    mine = everybodys.view(world, EXPERTS)[:, rank * local : (rank + 1) * local].sum(axis=1).cpu().tolist()
    sent = counts.reshape(world, local).sum(axis=1).cpu().tolist()
    places = torch.arange(tokens, device="cuda").unsqueeze(0).expand(EXPERTS, -1)
    permuted = x.index_select(0, places.masked_select(routed.T.contiguous()))
    arrived = torch.empty(sum(mine), WIDTH, device="cuda")
    dist.all_to_all_single(arrived, permuted, mine, sent)
    return {"rows": [len(permuted)], "sent": sent, "received": mine}


def sorted_by_expert(rank: int, world: int, tokens: int) -> dict[str, list[int]]:
    """Counts by ``histc``, tokens by ``argsort``, splits by ``tolist``: the way of torchtitan."""
    scores, x = torch.randn(tokens, EXPERTS, device="cuda").softmax(-1), torch.randn(tokens, WIDTH, device="cuda")
    _, chosen = torch.topk(scores, k=TOP, dim=1)
    counts = torch.histc(chosen.view(-1), bins=EXPERTS, min=0, max=EXPERTS)
    order = torch.argsort(chosen.view(-1), stable=True)
    rows = torch.gather(x, 0, (order // TOP).reshape(-1, 1).expand(-1, WIDTH))
    theirs = counts.new_empty(counts.shape[0])
    dist.all_to_all_single(theirs, counts)
    on_its_way = counts.view(world, -1).sum(dim=1).to(torch.device("cpu"), non_blocking=True)
    received: Any = theirs.view(world, -1).sum(dim=1).to("cpu").tolist()  # waits for the copy before it, too
    sent: Any = on_its_way.tolist()
    arrived = torch.empty(sum(received), WIDTH, device="cuda")
    dist.all_to_all_single(arrived, rows, received, sent)
    return {"rows": [len(rows)], "sent": sent, "received": received}
