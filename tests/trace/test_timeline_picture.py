"""The picture: well-formed SVG that shows every rank, stream and message, and stays small."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kernbench
from kernbench.errors import ConfigError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace import plot_timeline, write_trace
from tests.trace.conftest import exchanges

SVG = "{http://www.w3.org/2000/svg}"


def draw(source: Any, folder: Path, **options: Any) -> ElementTree.Element:
    plot_timeline(source, folder / "out.svg", **options)
    return ElementTree.parse(folder / "out.svg").getroot()


def texts(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def boxes(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [node for node in root.iter(f"{SVG}rect") if node.get("class") == kind]


def test_every_rank_and_stream_has_a_lane(ctx: RuntimeContext, tmp_path: Path) -> None:
    found = texts(draw(ctx, tmp_path))
    assert [text for text in found if text.startswith("rank ")] == [f"rank {rank}" for rank in range(8)]
    for track in ("host", "compute", "comm"):
        assert found.count(track) == 8
    assert "layers" in found


def test_boxes_stand_where_the_operations_are(ctx: RuntimeContext, tmp_path: Path) -> None:
    root = draw(ctx, tmp_path, width=1000)
    end = max(op.end or 0.0 for op in ctx.engine.op_log.operations)
    left, width = 126, 1000 - 126 - 24
    # the first is the legend's; ranks come in order, each with its operations in the order of time
    drawn = [(float(node.get("x", "")), float(node.get("width", ""))) for node in boxes(root, "collective")[1:]]
    expected = [
        (left + op.start / end * width, (op.end - op.start) / end * width)  # type: ignore[operator]
        for op in sorted(ctx.engine.op_log.operations, key=lambda op: (op.rank, op.start))
        if op.kind == "collective"
    ]
    assert [x for x, _ in drawn] == pytest.approx([x for x, _ in expected], abs=0.06)
    assert [w for _, w in drawn] == pytest.approx([w for _, w in expected], abs=0.06)


def test_a_line_per_message(ctx: RuntimeContext, tmp_path: Path) -> None:
    lines = [node for node in draw(ctx, tmp_path).iter(f"{SVG}path") if node.get("class") == "message"]
    messages = sum(int((trace.run.plan.nbytes > 0).sum()) for trace in ctx.engine.op_log.collectives)
    assert len(lines) == messages


def test_streams_to_many_peers_share_lanes(tmp_path: Path) -> None:
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(exchanges, args=(8, ctx), nprocs=8)
        found = texts(draw(ctx, tmp_path))
    first = found[found.index("rank 0") + 1 : found.index("rank 1")]
    assert [track for track in first if track != "compute"] == ["host", "comm", "send", "recv"]


def test_a_part_of_the_timeline(ctx: RuntimeContext, tmp_path: Path) -> None:
    whole = draw(ctx, tmp_path)
    part = draw(ctx, tmp_path, begin=0.0, end=15e-6, title="the beginning")
    assert "the beginning" in texts(part)
    assert len(boxes(part, "collective")) < len(boxes(whole, "collective"))
    assert all(float(node.get("x", "")) + float(node.get("width", "")) <= 1076.1 for node in boxes(part, "gemm"))


def test_thousands_of_short_operations_stay_a_small_file(tmp_path: Path) -> None:
    def worker(rank: int, torch: Any) -> None:
        x = torch.ones(8)
        for _ in range(3000):
            x = x + 1
        torch.synchronize()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)
        root = draw(ctx, tmp_path)
    assert (tmp_path / "out.svg").stat().st_size < 1_000_000
    assert any("x elementwise" in (node.text or "") for node in root.iter(f"{SVG}title"))


def test_an_empty_simulation(tmp_path: Path) -> None:
    with kernbench.simulate() as ctx:
        assert "timeline" in texts(draw(ctx, tmp_path))


def test_equal_simulations_give_equal_pictures(ctx: RuntimeContext, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_trace(ctx, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("name", ["out.png", "out", "missing/out.json"])
def test_a_path_that_says_no_form_is_refused(ctx: RuntimeContext, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"ends in|folder"):
        write_trace(ctx, tmp_path / name)
