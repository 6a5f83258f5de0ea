"""The tables of published training steps: each row names its source and the commit of it.

``data/published.csv`` are steps of replicated and fully sharded models; ``data/parallel.csv`` are of tensor, pipeline and
context parallelism.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import NamedTuple

from kernbench.errors import ConfigError

GIB = 2**30


class Published(NamedTuple):
    """One row. What a source does not say is empty or None.

    Attributes:
        id: of the row.
        source: whose figures they are: ``torchtitan``, ``llm-foundry`` or ``nanoGPT``; ``NeMo`` or ``Megatron-Core``.
        model, parallelism, gpu, dtype, checkpointing: as published.
        gpus: how many.
        seq: tokens of a sequence.
        batch: sequences per GPU in one forward pass.
        global_batch: sequences per step of the whole job.
        accumulate: forward passes per step.
        compiled: whether ``torch.compile`` was used; None: not stated.
        tokens_per_second: of one GPU.
        vague: whether the source leaves open on how many GPUs it was: no figure of the models is set by such a row.
        memory: bytes that the caching allocator reserved at most, None where not published.
        reference: where it is published.
        allocated: bytes that tensors had at most, None where not published.
        layout: degrees of parallelism by name (``TP``, ``PP``, ``CP``, ``EP``, ``DP``), of the second table.
    """

    id: str
    source: str
    model: str
    parallelism: str
    gpus: int
    gpu: str
    seq: int
    batch: int
    global_batch: int
    accumulate: int
    dtype: str
    compiled: bool | None
    checkpointing: str
    tokens_per_second: float
    memory: int | None
    vague: bool
    reference: str
    allocated: int | None = None
    layout: Mapping[str, int] = {}

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.global_batch * self.seq / self.gpus / self.tokens_per_second

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        compiled = {True: ", compiled", False: ", eager", None: ""}[self.compiled]
        again = "" if self.checkpointing == "none" else f", {self.checkpointing} recomputation"
        return f"{self.model}, {self.gpus} x {self.gpu}, {self.batch} x {self.seq}{again}{compiled}, {self.dtype}"


def published() -> tuple[Published, ...]:
    """All rows of the first table, in its order."""
    return _read("published.csv", _row)


def published_parallel() -> tuple[Published, ...]:
    """All rows of the second table, in its order."""
    return _read("parallel.csv", _parallel_row)


def _read(name: str, row: Callable[[dict[str, str]], Published]) -> tuple[Published, ...]:
    text = (files("kernbench") / "validation" / "end_to_end" / "data" / name).read_text(encoding="utf-8")
    return tuple(map(row, csv.DictReader(text.splitlines())))


def selected(names: tuple[str, ...], *, parallel: bool = False) -> tuple[Published, ...]:
    """The rows whose id, source or title contains one of some texts, all of them without any. Raises ConfigError for none.

    ``parallel``: of the second table.
    """
    rows = published_parallel() if parallel else published()
    found = tuple(row for row in rows if not names or any(_says(row, name) for name in names))
    if not found:
        sources = ", ".join(sorted({row.source for row in rows}))
        raise ConfigError(
            f"--only {' '.join(names)}: no such row; there are {rows[0].id} to {rows[-1].id}, of {sources}"
        )
    return found


def _says(row: Published, name: str) -> bool:
    return name in (row.id, row.source) or name.lower() in row.title.lower()


def _row(cells: dict[str, str]) -> Published:
    """A line of the file. Where it leaves open how many GPUs there were, one is taken, and no accumulation."""
    seq, batch = _first(cells["seq"]), _first(cells["local_batch"])
    alone = not cells["gpus"].isdigit()
    gpus = 1 if alone else int(cells["gpus"])
    accumulate = _first(cells["grad_accum"]) if cells["grad_accum"] else 1
    whole = _first(cells["global_batch"]) if cells["global_batch"] else batch * gpus * accumulate
    value = float(cells["value"].lstrip("~"))
    per_second = seq * whole / gpus / (value * 1e-3) if cells["metric"] == "ms/iter" else value
    return Published(
        id=cells["id"],
        source=re.split(r"[ ,]", cells["framework"])[0],
        model=cells["model"],
        parallelism="one GPU" if alone else cells["parallelism"],
        gpus=gpus,
        gpu=cells["gpu"].partition(" with ")[0],
        seq=seq,
        batch=batch,
        global_batch=whole,
        accumulate=accumulate,
        dtype=cells["dtype"],
        compiled={"on": True, "off": False}.get(cells["compile"]),
        checkpointing=cells["activation_ckpt"],
        tokens_per_second=per_second,
        memory=round(float(cells["memory_value"]) * GIB) if cells["memory_value"] else None,
        vague=alone,
        reference=f"{cells['source']} @ {cells['commit']}",
    )


def _parallel_row(cells: dict[str, str]) -> Published:
    """A line of the second table."""
    gpus, seq, whole = int(cells["gpus"]), int(cells["seq"]), int(cells["global_batch"])
    bytes_ = round(float(cells["memory_value"]) * GIB) if cells["memory_value"] else None
    return Published(
        id=cells["id"],
        source=re.split(r"[ ,]", cells["framework"])[0],
        model=cells["model"],
        parallelism=cells["parallelism"],
        gpus=gpus,
        gpu=cells["gpu"],
        seq=seq,
        batch=int(cells["local_batch"]),
        global_batch=whole,
        accumulate=int(cells["grad_accum"]),
        dtype=cells["dtype"],
        compiled=None,
        checkpointing=cells["activation_ckpt"],
        tokens_per_second=whole * seq / gpus / float(cells["value"]),
        memory=None,
        vague=False,
        reference=f"{cells['source']} @ {cells['commit']}",
        allocated=bytes_,
        layout={name: int(degree) for name, degree in re.findall(r"(TP|PP|CP|EP|DP) (\d+)", cells["parallelism"])},
    )


def _first(text: str) -> int:
    """The number that a cell begins with."""
    found = re.match(r"\d+", text)
    if found is None:
        raise ConfigError(f"published.csv: {text!r} does not begin with a number")
    return int(found[0])
