"""A small serving engine: continuous batching over a paged cache, chunked prefill, tensor parallelism, decoding in CUDA graphs.

    torchrun --nproc-per-node 8 -m kernbench.programs.serving --model config.json --requests poisson:4/s,in=1024,out=256

Every rank runs the whole engine, on its share of the heads and of the vocabulary; they agree on what has arrived by rank 0's
clock. The order is that of vLLM's scheduler (Kwon et al. 2023, arXiv:2309.06180; chunks as in Agrawal et al. 2023,
arXiv:2308.16369): tokens of running sequences first, then prompts of waiting ones, up to a budget of tokens a step; if pages
run out, the sequence that came last gives its own up and is computed again later. Tokens are those of greedy decoding. Weights
are made up; the model is a ``config.json`` of a Llama.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from kernbench.programs.model_shape import ModelShape, ServedModel
from kernbench.programs.requests import ServedRequest, limited, requests_of
from kernbench.programs.serving_model import BatchInputs, ServedLlama
from kernbench.programs.serving_options import options
from kernbench.reporting import report_engine_step, report_request

GRAPHS = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 32), *range(256, 1025, 128))
"""Numbers of sequences for which decoding is captured; a batch is padded to the next one."""


@dataclass(eq=False)
class ServedSequence:
    """A request on its way: its tokens, how many of them are in the cache, and its pages there."""

    request: ServedRequest
    tokens: list[int]
    cached: int = 0
    pages: list[int] = field(default_factory=list)


class Scheduler:
    """Says which tokens are next.

    Args:
        pages, page: of the cache: how many, and tokens of each. The first is for padding.
        budget: most tokens of a step.
        most: sequences of a step.
    """

    def __init__(self, pages: int, page: int, budget: int, most: int) -> None:
        self.free, self.page, self.budget, self.most = list(range(pages - 1, 0, -1)), page, budget, most
        self.waiting: deque[ServedSequence] = deque()
        self.running: list[ServedSequence] = []

    def next(self) -> list[tuple[ServedSequence, int]]:
        """Sequences of the next step, and how many tokens of each."""
        chosen: list[tuple[ServedSequence, int]] = []
        budget = self.budget
        for each in list(self.running):
            count = min(len(each.tokens) - each.cached, budget)
            if each in self.running and count and self._make_room(each, count):
                chosen.append((each, count))
                budget -= count
        while self.waiting and budget and len(self.running) < self.most:
            each = self.waiting[0]
            count = min(len(each.tokens), budget)
            if self._lacking(each, count) > len(self.free):
                break
            self.running.append(self.waiting.popleft())
            self._make_room(each, count)
            chosen.append((each, count))
            budget -= count
        return chosen

    def end(self, each: ServedSequence) -> None:
        """It has all its tokens."""
        self.running.remove(each)
        self._give_back(each)

    def _lacking(self, each: ServedSequence, count: int) -> int:
        return -(-(each.cached + count) // self.page) - len(each.pages)

    def _make_room(self, each: ServedSequence, count: int) -> bool:
        """Let it have pages for ``count`` more tokens, of the sequences that came last, if need be; false if it was last."""
        while (lacks := self._lacking(each, count)) > len(self.free):
            last = self.running.pop()
            self._give_back(last)
            last.cached = 0
            self.waiting.appendleft(last)
            report_request(last.request.name, "preempted")
            if last is each:
                return False
        each.pages += [self.free.pop() for _ in range(lacks)]
        return True

    def _give_back(self, each: ServedSequence) -> None:
        self.free += reversed(each.pages)
        each.pages = []


class ServingEngine:
    """The model, its cache, and what runs on it. ``args`` are the command's."""

    def __init__(self, args: argparse.Namespace, shape: ModelShape, device: torch.device) -> None:
        self.args, self.shape, self.device = args, shape, device
        self.world = dist.get_world_size()
        torch.set_default_dtype(getattr(torch, args.dtype))
        with device:
            self.model = ServedLlama(shape, dist.get_rank(), self.world)
        if args.weights == "drawn":
            self.model.draw(0)
        torch.set_default_dtype(torch.float32)
        self.weights = torch.cuda.memory_allocated()
        self.kv_heads = shape.num_key_value_heads // min(self.world, shape.num_key_value_heads)
        token = 2 * shape.num_hidden_layers * self.kv_heads * shape.head_dim * self.model.norm.itemsize
        self.page_bytes = args.page * token
        self.pages = args.pages or self._profiled()
        self.cache = self._cache(self.pages)
        self.table = -(-args.longest // args.page)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, BatchInputs, Tensor]] = {}
        self.scheduler = Scheduler(self.pages, args.page, args.budget, args.sequences)

    def _cache(self, pages: int) -> list[Tensor]:
        size = (2, pages, self.args.page, self.kv_heads, self.shape.head_dim)
        return [torch.zeros(size, dtype=self.model.norm.dtype, device=self.device) for _ in self.model.layers]

    def _profiled(self) -> int:
        """Pages for which there is memory: what is left beside a step of the whole budget. As vLLM finds out."""
        longest = min(self.args.budget, self.args.longest)
        counts = [longest] * (self.args.budget // longest)
        pages = -(-longest // self.args.page)
        self.cache, before = self._cache(pages + 1), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self._run([0] * sum(counts), self._step([(0, count, list(range(1, pages + 1))) for count in counts]))
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before + self.weights
        self.cache = []
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        beside = total - free - torch.cuda.memory_reserved()
        room = torch.tensor([int(total * self.args.utilization) - peak - beside], device=self.device)
        dist.all_reduce(room, dist.ReduceOp.MIN)
        pages = int(room.item()) // self.page_bytes
        if pages < 2:
            raise ValueError(f"no room for a cache: weights take {self.weights / 2**30:.1f} GiB of {total / 2**30:.1f} GiB: "
                              "take more GPUs (--tp)")  # fmt: skip
        return pages

    def capture(self) -> None:
        """Make the graphs, the largest first, so that the others use its memory."""
        pool = torch.cuda.graph_pool_handle()
        for size in sorted((each for each in GRAPHS if each <= self.args.sequences), reverse=True):
            tokens = torch.zeros(size, dtype=torch.long, device=self.device)
            step = self._step([(0, 1, [0])] * size, padded=self.args.longest)
            self.model(tokens, step, self.cache)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                found = self.model(tokens, step, self.cache)
            self.graphs[size] = graph, tokens, step, found

    def _step(self, parts: Sequence[tuple[int, int, list[int]]], padded: int = 0) -> BatchInputs:
        """Of sequences: tokens that are in the cache, that come, and pages. ``padded``: keys of the table's rows at most."""
        page, ends, lengths = self.args.page, [0], [0]
        positions: list[int] = []
        slots: list[int] = []
        for cached, count, pages in parts:
            places = range(cached, cached + count)
            positions += places
            slots += [pages[at // page] * page + at % page for at in places]
            ends.append(ends[-1] + count)
            lengths.append(lengths[-1] + cached + count)
        width = -(-padded // page) or max(len(pages) for _, _, pages in parts)
        table = [[*pages, *[0] * (width - len(pages))] for _, _, pages in parts]
        longest = max(count for _, count, _ in parts), padded or max(cached + count for cached, count, _ in parts)
        whole = (torch.tensor(each) for each in (positions, slots, [end - 1 for end in ends[1:]]))
        small = (torch.tensor(each, dtype=torch.int32) for each in (ends, lengths, table))
        moved = [each.to(self.device, non_blocking=True) for each in (*whole, *small)]
        return BatchInputs(moved[0], moved[1], moved[2], moved[3], moved[4], moved[5], longest)

    def _run(self, tokens: list[int], step: BatchInputs) -> Tensor:
        found: Tensor = self.model(torch.tensor(tokens).to(self.device, non_blocking=True), step, self.cache)
        return found

    def step(self, batch: Sequence[tuple[ServedSequence, int]]) -> list[int]:
        """Compute ``batch``; the tokens that come after each sequence's, on the host."""
        parts = [(each.cached, count, each.pages) for each, count in batch]
        tokens = [token for each, count in batch for token in each.tokens[each.cached : each.cached + count]]
        size = next((size for size in sorted(self.graphs) if size >= len(batch)), None)
        if size is None or len(tokens) > len(batch):
            return self._run(tokens, self._step(parts)).tolist()
        graph, into, captured, found = self.graphs[size]
        lacking = size - len(batch)
        step = self._step([*parts, *[(0, 1, [0])] * lacking], padded=self.args.longest)
        into.copy_(torch.tensor([*tokens, *[0] * lacking]), non_blocking=True)
        for name in ("positions", "slots", "lengths", "table"):
            getattr(captured, name).copy_(getattr(step, name), non_blocking=True)
        graph.replay()
        return found[: len(batch)].tolist()

    def serve(self, requests: Sequence[ServedRequest]) -> dict[str, list[int]]:
        """Answer all requests as they arrive; the generated tokens by their names."""
        begin, coming = time.perf_counter(), deque(requests)
        answers: dict[str, list[int]] = {}
        while coming or self.scheduler.waiting or self.scheduler.running:
            now = agreed(time.perf_counter() - begin)
            while coming and coming[0].arrival <= now:
                self._take(coming.popleft(), begin)
            batch = self.scheduler.next()
            if not batch:
                time.sleep(max(coming[0].arrival - now, 0.0))
                continue
            if self.args.host_seconds:
                time.sleep(self.args.host_seconds)
            tokens, decoded = self.step(batch), 0
            for (each, count), token in zip(batch, tokens, strict=True):
                decoded += count == 1 and each.cached >= len(each.request.prompt)
                each.cached += count
                if each.cached < len(each.tokens):
                    continue
                each.tokens.append(token)
                report_request(each.request.name, "token")
                if len(each.tokens) == len(each.request.prompt) + each.request.wanted:
                    answers[each.request.name] = each.tokens[len(each.request.prompt) :]
                    self.scheduler.end(each)
                    report_request(each.request.name, "ended")
            scheduler = self.scheduler
            report_engine_step(
                prefill=sum(count for _, count in batch) - decoded, decode=decoded, running=len(scheduler.running),
                waiting=len(scheduler.waiting), blocks=self.pages - 1, blocks_used=self.pages - 1 - len(scheduler.free),
            )  # fmt: skip
        return answers

    def _take(self, request: ServedRequest, begin: float) -> None:
        if -(-(len(request.prompt) + request.wanted) // self.args.page) > self.pages - 1:
            raise ValueError(
                f"request {request.name}: {len(request.prompt)} + {request.wanted} tokens are more than the cache holds, "
                f"{self.pages - 1} pages of {self.args.page}"
            )
        report_request(request.name, "arrived", tokens=len(request.prompt), at=begin + request.arrival)
        self.scheduler.waiting.append(ServedSequence(request, list(request.prompt)))


def agreed(now: float) -> float:
    """Rank 0's clock, on all ranks."""
    if dist.get_world_size() == 1:
        return now
    clock = torch.tensor([now], dtype=torch.float64)
    dist.broadcast(clock, 0)
    return clock.item()


@torch.no_grad()
def main() -> None:
    """Serve."""
    args = options().parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    model = ServedModel.read(args.model, dist.get_world_size(), args.dtype)
    shape, args.dtype = model.shape, model.dtype
    args.longest = min(args.longest or shape.max_position_embeddings, shape.max_position_embeddings)
    requests = limited(requests_of(args.requests, shape.vocab_size), args.longest)
    engine = ServingEngine(args, shape, device)
    if dist.get_rank() == 0:
        tokens = (engine.pages - 1) * args.page
        print(f"weights {engine.weights / 2**30:.2f} GiB per GPU; cache {engine.pages - 1:,} pages of {args.page}: {tokens:,} "
              f"tokens, {tokens / args.longest:.1f} sequences of {args.longest:,}")  # fmt: skip
    if requests and not args.eager:
        engine.capture()
    answers = engine.serve(requests)
    if args.answers is not None and dist.get_rank() == 0:
        args.answers.write_text(json.dumps(answers))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
