"""Random streams of tensor parallel ranks."""

from __future__ import annotations

import pytest
import torch

from kernbench import tp
from kernbench.errors import KernbenchError
from tests.tp.ranks import SEED, simulated


def draws() -> tuple[list[float], list[float], list[float]]:
    """Three numbers of the shared stream, three of the rank's own inside a fork, three more of the shared."""
    first = torch.rand(3).tolist()
    with tp.get_rng_tracker().fork():
        own = torch.rand(3).tolist()
    return first, own, torch.rand(3).tolist()


def test_shared_stream_is_equal_and_forked_stream_differs():
    results = simulated(4, draws)
    assert len({tuple(first) for first, _, _ in results}) == 1
    assert len({tuple(own) for _, own, _ in results}) == 4
    shared = torch.Generator().manual_seed(SEED)
    for first, _, after in results:  # a fork takes nothing from the stream around it
        assert (
            first + after
            == torch.rand(3, generator=shared.manual_seed(SEED)).tolist() + torch.rand(3, generator=shared).tolist()
        )


def test_seeds_are_megatron_cores():
    """Its tensor parallel stream is seeded by ``seed + 2718 + rank``."""
    for rank, (_, own, _) in enumerate(simulated(2, draws)):
        assert own == torch.rand(3, generator=torch.Generator().manual_seed(SEED + 2718 + rank)).tolist()


def test_a_stream_goes_on_where_it_was_also_after_an_error():
    def body() -> list[float]:
        tracker = tp.get_rng_tracker()
        with pytest.raises(ZeroDivisionError), tracker.fork():
            float(torch.rand(1)) / 0.0
        with tracker.fork():
            return [float(torch.rand(1))]

    expected = torch.rand(2, generator=torch.Generator().manual_seed(SEED + 2718)).tolist()[1:]
    assert simulated(1, body)[0] == expected


def test_states_can_be_saved_and_put_back():
    def body() -> bool:
        tracker = tp.get_rng_tracker()
        saved = tracker.get_states()
        with tracker.fork():
            first = torch.rand(2)
        tracker.set_states(saved)
        with tracker.fork():
            return torch.equal(first, torch.rand(2))

    assert simulated(2, body) == [True, True]


def test_names_and_seeds_are_used_once():
    tracker = tp.RNGStatesTracker()
    assert not tracker.is_initialized()
    tracker.add("a", 1)
    assert tracker.is_initialized()
    with pytest.raises(KernbenchError, match="'a' exists"):
        tracker.add("a", 2)
    with pytest.raises(KernbenchError, match="seed 1 is in use"):
        tracker.add("b", 1)
    with pytest.raises(KernbenchError, match=r"'c' has not been added.*there are a"), tracker.fork("c"):
        pass


def test_dropout_of_parts_differs_and_of_wholes_agrees():
    def body(sequence_parallel: bool) -> torch.Tensor:
        config = tp.TransformerConfig(8, 2, hidden_dropout=0.5, sequence_parallel=sequence_parallel)
        layer = tp.TransformerLayer(config)
        return layer._drop(torch.ones(64))

    whole = simulated(2, body, False)
    assert torch.equal(*whole)
    assert not torch.equal(*simulated(2, body, True))
    assert set(whole[0].tolist()) == {0.0, 2.0}
