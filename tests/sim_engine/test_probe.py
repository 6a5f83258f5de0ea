"""Traffic patterns: closed forms, what must hold, and what the command does when it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.errors import ConfigError
from kernbench.sim_engine.probe import Hop, Pattern, Transfer, probe, run_pattern
from kernbench.topology import resolve_topology

SIZES = (4096, 1 << 20, 1 << 26)


@pytest.mark.parametrize("system", ["sip8", "dgx_h100_2n", "mi300x", "gh200_alps"])
def test_every_pattern_holds(system):
    results = probe(resolve_topology(system).topology_obj, sizes=SIZES)
    assert [text for result in results for text in result.broken] == []
    assert {"host to device", "PE to local HBM", "SIP to SIP", "many to one", "all to all"} <= {
        result.pattern.name for result in results
    }


def test_the_closed_form_is_latency_and_the_busiest_link():
    topology = resolve_topology("dgx_h100").topology_obj
    one, many = probe(topology, cases=("SIP to SIP", "many to one"), sizes=(1 << 26,))
    route = topology.route(1, 0)
    assert one.rows[0].simulated == pytest.approx(route.latency + (1 << 26) / route.bandwidth)
    assert many.rows[0].simulated == pytest.approx(route.latency + 7 * (1 << 26) / route.bandwidth)
    assert many.rows[0].utilisation == pytest.approx(1, abs=0.01)


class Quick(Pattern):
    """A simulation that is quicker than it can be, the more so the more it sends."""

    def simulate(self, nbytes):
        return [1.0 / nbytes]


def test_what_is_broken_is_said():
    hop = Hop("wire", 1e-6, 1e9)
    pattern = Quick("wire", (Transfer((0,), 2e-6),), (hop,), [1e9])
    slow = Pattern("slow", (Transfer((0,), 1.0),), (replace(hop, latency=1.0),), [1e9])
    broken = "\n".join(run_pattern(replace(pattern, no_quicker_than="slow"), SIZES, {"slow": slow}).broken)
    for words in ("quicker than the best", "contention helped", "take less than", "quicker than slow", "hops add up"):
        assert words in broken
    assert run_pattern(slow, SIZES, {}).broken == ()


def test_the_command(monkeypatch):
    runner = CliRunner()
    shown = runner.invoke(app, ["probe", "sip8", "--case", "SIP to SIP", "--nodes", "3"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "3 nodes of sip8" in shown.output
    assert "1 of 1 patterns hold" in shown.output
    found = json.loads(runner.invoke(app, ["probe", "dgx_h100", "--json", "--case", "node to node"]).output)
    assert found["nodes"] == 2
    assert [row["nbytes"] for row in found["cases"][0]["rows"]][::7] == [4096, 1 << 26]
    monkeypatch.setattr(Pattern, "simulate", Quick.simulate)
    failed = runner.invoke(app, ["probe", "sip8", "--case", "SIP to SIP"])
    assert failed.exit_code == 1
    assert "broken: SIP to SIP, 4096 bytes" in failed.output
    with pytest.raises(ConfigError, match="it has: host to device"):
        probe(resolve_topology("sip8").topology_obj, cases=("teleport",))
