"""Indexing drains, as every entry of the host-read registry does, but brings no value to the host."""

from __future__ import annotations

import kernbench


def test_a_slice_needs_no_values() -> None:
    with kernbench.simulate(enable_data=False) as ctx:
        assert ctx.zeros(8, 4)[2:5, 1].shape == (3,)


def test_a_slice_costs_no_copy_to_the_host() -> None:
    with kernbench.simulate() as ctx:
        product = ctx.ones(64, 64) @ ctx.ones(64, 64)
        part = product[:2]
        assert [op.name for op in ctx.engine.op_log.operations] == ["ones.default", "ones.default", "mm.default"]
        assert part.tolist() == [[64.0] * 64] * 2
        assert [op.name for op in ctx.engine.op_log.operations][2:] == ["mm.default", "device to host"]
