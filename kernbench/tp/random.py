"""Random numbers in model-parallel ranks.

Ranks of a tensor group must draw the *same* numbers for what they hold in common (dropout of a replicated activation)
and *different* ones for what they hold in parts. So there are two streams: torch's default generator, seeded alike in
the group, and the tracker's ``"model-parallel-rng"``, seeded apart, entered by::

    with get_rng_tracker().fork():
        attention = dropout(attention)

Weights have a third one, :func:`layer_init_seed`: it depends on neither the tensor parallel size nor the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from kernbench.errors import KernbenchError
from kernbench.tp import parallel_state
from kernbench.tp.per_rank import PerRank

_MODEL_PARALLEL_RNG_TRACKER_NAME = "model-parallel-rng"
_DATA_PARALLEL_RNG_TRACKER_NAME = "data-parallel-rng"
_TENSOR_SEED_OFFSET = 2718  # Megatron-Core's, so that the same seed gives the same streams
_PIPELINE_SEED_OFFSET = 100  # likewise


def get_data_parallel_rng_tracker_name() -> str:
    """Name of the stream that ranks of a tensor group share."""
    return _DATA_PARALLEL_RNG_TRACKER_NAME


State = tuple[torch.Tensor, ...]
"""States of the host's generator and, in a program for GPUs, of the current GPU's."""


def _get_state() -> State:
    host = torch.get_rng_state()
    return (host, torch.cuda.get_rng_state()) if _on_gpu() else (host,)


def _set_state(state: State) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _seed(seed: int) -> None:
    torch.manual_seed(seed)  # every device's default generator


@dataclass
class RNGStatesTracker:
    """Named states of the default generators: of the host's, and of the GPU's if there is one."""

    states_: dict[str, State] = field(default_factory=dict)
    seeds_: set[int] = field(default_factory=set)

    def is_initialized(self) -> bool:
        """Whether any stream has been added."""
        return bool(self.states_)

    def reset(self) -> None:
        """Forget all streams."""
        self.states_.clear()
        self.seeds_.clear()

    def get_states(self) -> dict[str, State]:
        """A copy of the mapping, for checkpoints."""
        return dict(self.states_)

    def set_states(self, states: dict[str, State]) -> None:
        """Put back what :meth:`get_states` gave."""
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """A new stream. Raises KernbenchError for a name or a seed that is there already."""
        if seed in self.seeds_:
            raise KernbenchError(f"random stream {name!r}: seed {seed} is in use by another stream")
        if name in self.states_:
            raise KernbenchError(f"random stream {name!r} exists already")
        self.seeds_.add(seed)
        before = _get_state()
        _seed(seed)
        self.states_[name] = _get_state()
        _set_state(before)

    @contextmanager
    def fork(self, name: str = _MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        """Inside, torch draws from the stream; afterwards from where it was. No collective inside, on greenlet ranks."""
        if name not in self.states_:
            raise KernbenchError(
                f"random stream {name!r} has not been added: call model_parallel_manual_seed(seed) first; "
                f"there are {', '.join(self.states_) or 'none'}"
            )
        before = _get_state()
        _set_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = _get_state()
            _set_state(before)


CudaRNGStatesTracker = RNGStatesTracker
_trackers: PerRank[RNGStatesTracker] = PerRank(RNGStatesTracker)


def get_rng_tracker() -> RNGStatesTracker:
    """This rank's tracker."""
    return _trackers.get()


get_cuda_rng_tracker = get_rng_tracker


def model_parallel_manual_seed(seed: int) -> None:
    """Seed this rank's streams as Megatron-Core does, and start counting layers for their initialisation.

    The default generator gets ``seed`` plus 100 per pipeline stage: alike in a tensor group. The tracker's
    model-parallel stream gets another seed per tensor rank.
    """
    shared = seed + _PIPELINE_SEED_OFFSET * parallel_state.get_pipeline_model_parallel_rank()
    tracker = get_rng_tracker()
    tracker.reset()
    _seed(shared)
    tracker.add(_DATA_PARALLEL_RNG_TRACKER_NAME, shared)
    own = shared + _TENSOR_SEED_OFFSET + parallel_state.get_tensor_model_parallel_rank()
    tracker.add(_MODEL_PARALLEL_RNG_TRACKER_NAME, own)
    _layers.reset()
    _layers.get().seed = shared


model_parallel_cuda_manual_seed = model_parallel_manual_seed


# -- weights ---------------------------------------------------------------------------------------------------------


@dataclass
class _LayerSeeds:
    seed: int = 1234
    count: int = 0


_layers: PerRank[_LayerSeeds] = PerRank(_LayerSeeds)
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads consecutive numbers over the seeds


def layer_init_seed() -> int:
    """Seed for the next layer's weights: depends on the model's seed and on how many layers were made before."""
    state = _layers.get()
    state.count += 1
    return (state.seed * _GOLDEN + state.count * 0xBF58476D1CE4E5B9) % 2**63


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator starts from ``seed``; afterwards it is where it was."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
