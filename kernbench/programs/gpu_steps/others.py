"""Recurrent networks, embeddings, graphs, and programs of small operators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernbench.programs.gpu_steps.program import Step, TimedProgram, training


def lstm(batch: int, length: int) -> Step:
    class WordModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.layers = nn.Embedding(10000, 650), nn.LSTM(650, 650, 2, dropout=0.5)
            self.head = nn.Linear(650, 10000)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.layers(self.tokens(tokens))[0])

    with torch.device("cuda"):
        model, tokens = WordModel(), torch.randint(10000, (length, batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return training(
        model, lambda: F.cross_entropy(model(tokens).view(-1, 10000), tokens.view(-1)), optimizer, clip=0.25
    )


def cells(batch: int, length: int) -> Step:
    """A recurrent cell that Python calls for each place."""
    with torch.device("cuda"):
        cell, head, x = nn.GRUCell(256, 512), nn.Linear(512, 10), torch.randn(length, batch, 256)
        targets = torch.randint(10, (batch,))
    model = nn.ModuleList([cell, head])

    def loss() -> Tensor:
        state = torch.zeros(batch, 512, device="cuda")
        for each in x:
            state = cell(each, state)
        return F.cross_entropy(head(state), targets)

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def recommendation(batch: int) -> Step:
    """Bags of embeddings, their products in pairs, layers above and below."""
    with torch.device("cuda"):
        tables = nn.ModuleList(nn.EmbeddingBag(200000, 64, mode="sum", sparse=False) for _ in range(16))
        bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        top = nn.Sequential(nn.Linear(64 + 136, 1024), nn.ReLU(), nn.Linear(1024, 1))
        dense, targets = torch.randn(batch, 13), torch.rand(batch).round()
        given = [torch.randint(200000, (batch, 4)) for _ in tables]
        upper = torch.triu_indices(17, 17, offset=1)
    model = nn.ModuleList([tables, bottom, top])

    def loss() -> Tensor:
        x = bottom(dense)
        all_of_them = torch.stack([x, *(table(each) for table, each in zip(tables, given, strict=True))], dim=1)
        pairs = torch.bmm(all_of_them, all_of_them.transpose(1, 2))[:, upper[0], upper[1]]
        return F.binary_cross_entropy_with_logits(top(torch.cat((x, pairs), dim=1)).squeeze(1), targets)

    return training(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))


def graph(nodes: int, edges: int) -> Step:
    """Two layers over the edges of a graph: what nodes have is gathered, and added up where edges end."""
    with torch.device("cuda"):
        first, second = nn.Linear(128, 256), nn.Linear(256, 40)
        x, targets = torch.randn(nodes, 128), torch.randint(40, (nodes,))
        begin, end = torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,))
        count = torch.zeros(nodes).index_add_(0, end, torch.ones(edges)).clamp_(min=1)[:, None]
    model = nn.ModuleList([first, second])

    def spread(y: Tensor) -> Tensor:
        return torch.zeros_like(y).index_add(0, end, y[begin]) / count

    def loss() -> Tensor:
        y = F.relu(spread(first(x)))
        return F.cross_entropy(spread(second(y)), targets)

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=1e-2))


def reinforcement(batch: int) -> Step:
    """Small layers, a copy of them that follows, and a host that reads each step's loss."""
    with torch.device("cuda"):
        model, target = (nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 4)) for _ in range(2))
        state, after = torch.randn(batch, 8), torch.randn(batch, 8)
        action, reward = torch.randint(4, (batch, 1)), torch.randn(batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> float:
        with torch.no_grad():
            wanted = reward + 0.99 * target(after).max(1).values
        loss = F.smooth_l1_loss(model(state).gather(1, action).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), target.parameters(), strict=True):
                theirs.lerp_(mine, 0.005)
        return loss.item()

    return step


def wide(width: int, batch: int, dtype: torch.dtype) -> Step:
    with torch.device("cuda"):
        layers = [layer for _ in range(4) for layer in (nn.Linear(width, width, dtype=dtype), nn.ReLU())]
        model, x = nn.Sequential(*layers), torch.randn(batch, width, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    return training(model, lambda: model(x).float().pow(2).mean(), optimizer)


def sound(batch: int) -> Step:
    """Dilated convolutions over one dimension, gated."""
    with torch.device("cuda"):
        first = nn.Conv1d(1, 128, 1)
        filters = nn.ModuleList(nn.Conv1d(128, 256, 3, padding=2**n, dilation=2**n) for n in range(8))
        last, x = nn.Conv1d(128, 1, 1), torch.randn(batch, 1, 16000)
    model = nn.ModuleList([first, filters, last])

    def loss() -> Tensor:
        y = first(x)
        for each in filters:
            a, b = each(y).chunk(2, dim=1)
            y = y + torch.tanh(a) * torch.sigmoid(b)
        return F.mse_loss(last(y), x)

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def simulation(side: int) -> Step:
    """Heat on a plate, by shifted copies of it: no network."""
    plate = torch.rand(side, side, device="cuda")

    def step() -> Tensor:
        nonlocal plate
        for _ in range(10):
            around = sum(plate.roll(shift, dim) for shift in (1, -1) for dim in (0, 1))
            plate = plate + 0.1 * (around - 4 * plate)
        return plate

    return step


def programs() -> Iterator[TimedProgram]:
    yield TimedProgram("training", "lstm fp32, 20 x 35", partial(lstm, 20, 35))
    yield TimedProgram("training", "gru cells fp32, 64 x 50", partial(cells, 64, 50))
    yield TimedProgram("training", "recommendation fp32, 8192", partial(recommendation, 8192))
    yield TimedProgram("training", "graph fp32, 100000 nodes", partial(graph, 100_000, 1_000_000))
    yield TimedProgram("training", "reinforcement fp32, 256", partial(reinforcement, 256))
    yield TimedProgram("training", "wide fp32 2048, 1024", partial(wide, 2048, 1024, torch.float32))
    yield TimedProgram("training", "wide bf16 8192, 4096", partial(wide, 8192, 4096, torch.bfloat16))
    yield TimedProgram("training", "sound fp32, 8", partial(sound, 8))
    yield TimedProgram("other", "heat fp32, 4096", partial(simulation, 4096))
