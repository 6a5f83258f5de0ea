"""choose: what the library runs, and what it may be passed."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.cost import COLLECTIVES, collective_time
from kernbench.cost.selection import choose
from kernbench.errors import ConfigError


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("system", "ranks", "nodes"), [("dgx_a100", 3, 1), ("dgx_h100", 8, 1), ("mi300x", 16, 2), ("sip8", 64, 8)]
)
def test_the_choice_is_the_one_that_is_timed(system, ranks, nodes, collective):
    for size in 2.0 ** np.arange(3, 34, 5):
        choice = choose(system, collective, size, ranks=ranks, nodes=nodes)
        estimate = collective_time(system, collective, size, ranks=ranks, nodes=nodes)
        assert (choice.algorithm, choice.protocol) == (estimate.algorithm, estimate.protocol)
        assert choice.channels >= 1
        assert choice.chunk >= 1


def test_channels_open_as_their_threads_get_work():
    """512 threads of 8 bytes each a rank (LL) and of 64 bytes (Simple) make a channel worth while."""
    count = [choose("dgx_h100", "all_reduce", n * 512 * 8 * 8, ranks=8, algorithm="ring/ll").channels for n in (1, 5)]
    assert count == [1, 5]
    assert choose("dgx_h100", "all_reduce", 3 * 512 * 64, ranks=8, algorithm="ring/simple").channels == 3
    assert choose("dgx_h100", "all_reduce", 1 << 30, ranks=8, algorithm="ring/simple").channels == 24


@pytest.mark.parametrize(
    ("environ", "algorithm", "protocol"),
    [
        ({"NCCL_ALGO": "Tree"}, {"tree"}, {"ll", "ll128", "simple"}),
        ({"NCCL_ALGO": "^NVLS,Tree"}, {"ring"}, {"ll", "ll128", "simple"}),
        ({"NCCL_ALGO": "ring;allreduce:tree"}, {"tree"}, {"ll", "ll128", "simple"}),
        ({"NCCL_ALGO": "ring;broadcast:tree", "NCCL_PROTO": "LL"}, {"ring"}, {"ll"}),
        ({"NCCL_PROTO": "Simple"}, {"ring", "nvls", "tree"}, {"simple"}),
        ({"NCCL_PROTO": "broadcast:LL"}, {"ring", "nvls", "tree"}, {"ll", "ll128", "simple"}),
    ],
)
def test_the_users_variables_restrict(environ, algorithm, protocol):
    found = [choose("dgx_h100", "all_reduce", size, ranks=8, environ=environ) for size in (8, 1 << 20, 1 << 30)]
    assert {choice.algorithm for choice in found} <= algorithm
    assert {choice.protocol for choice in found} <= protocol


def test_the_users_channels_are_kept():
    few = choose("dgx_h100", "all_gather", 1 << 30, ranks=8, environ={"NCCL_MAX_NCHANNELS": "4"})
    many = choose("dgx_h100", "all_gather", 8, ranks=8, environ={"NCCL_MIN_NCHANNELS": "32"})
    assert (few.channels, many.channels) == (4, 32)
    assert choose("dgx_h100", "sendrecv", 8, ranks=8, environ={"NCCL_ALGO": "Ring"}).algorithm == "p2p"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"environ": {"NCCL_ALGO": "PAT"}}, "leaves nothing"),
        ({"environ": {"NCCL_MAX_NCHANNELS": "many"}}, "whole number"),
        ({"nbytes": -1}, ">= 0"),
        ({"collective": "gossip"}, "unknown collective"),
        ({"algorithm": "ring/direct"}, "possible"),
    ],
)
def test_bad_choices_are_refused(arguments, words):
    call = {"collective": "all_reduce", "nbytes": 8} | arguments
    with pytest.raises(ConfigError, match=words):
        choose("dgx_h100", call.pop("collective"), call.pop("nbytes"), ranks=8, **call)


def test_a_flow_between_nodes_has_two_channels_until_ranks_crowd_them():
    """Eight NICs open 16 channels, which take two of each of 32 ranks; a 33rd leaves one channel, 25 GB/s, to all."""
    size = 1 << 30

    def rate(ranks, nodes):
        return size / collective_time("dgx_h100", "sendrecv", size, ranks=ranks, nodes=nodes).seconds

    assert rate(32, 4) == pytest.approx(rate(16, 2), rel=0.02)
    assert rate(40, 5) == pytest.approx(25e9, rel=0.02)
    assert rate(5, 5) == pytest.approx(25e9, rel=0.02)
