"""How many tokens vLLM's second runner samples, without data: its kernels count them on the GPU, beside unknown tokens.

One of each sequence whose prompt is computed by then, which the host knows and says to nothing but metrics; of drafts that are
verified as many more as are assumed to be accepted.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import numpy as np
import torch

from kernbench.compiled_operators.stating import is_without_data, state_values
from kernbench.errors import ConfigError
from kernbench.simulation.active_simulation import current_simulation

ACCEPTANCE = "KERNBENCH_ACCEPTANCE"
"""The environment variable that says which share of drafted tokens is accepted where those before it are; default: none."""


def observe_sampling(module: ModuleType) -> None:
    """Say how many are sampled where nothing was drafted: ``vllm.v1.worker.gpu.sample.sampler``."""
    sampler: Any = getattr(module, "Sampler", None)
    if sampler is None or not callable(sampler):
        return
    method = sampler.__call__

    @functools.wraps(method)
    def sample(self: object, logits: object, batch: object, *args: object, **kwargs: object) -> Any:
        found = method(self, logits, batch, *args, **kwargs)
        state_values(found.num_sampled, _tensor(_whole(batch)[: len(found.num_sampled)]))
        return found

    sampler.__call__ = sample


def observe_verifying(module: ModuleType) -> None:
    """Say how many are accepted where some were drafted: ``vllm.v1.worker.gpu.spec_decode.rejection_sampler``."""
    sampler: Any = getattr(module, "RejectionSampler", None)
    if sampler is None or not callable(sampler):
        return
    method, drafts = sampler.__call__, Drafts(os.environ.get(ACCEPTANCE, "0"))

    @functools.wraps(method)
    def verify(self: object, logits: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(self, logits, batch, *args, **kwargs)
        if is_without_data():
            whole, given = _whole(batch), np.diff(batch.cu_num_logits_np)[: len(found.num_sampled)]
            sampled = (1 + drafts.accepted(given - 1)) * whole[: len(given)]
            state_values(found.num_sampled, _tensor(sampled))
            state_values(found.num_rejected, _tensor((given - sampled) * whole[: len(given)]))
            simulation = current_simulation()
            assert simulation is not None
            simulation.remarks.setdefault(
                f"assumed: {drafts.share:.0%} of the tokens that are drafted are accepted ({ACCEPTANCE})"
            )
        return found

    sampler.__call__ = verify


class Drafts:
    """How many of the tokens that were drafted are accepted: on average as many as if each were with this share where those
    before it are. What is less than one is carried on to the next step.

    Args:
        share: as text. Raises ConfigError if it is none.
    """

    def __init__(self, share: str) -> None:
        try:
            self.share = float(share)
        except ValueError:
            self.share = -1.0
        if not 0 <= self.share <= 1:
            raise ConfigError(f"{ACCEPTANCE}={share!r}: expected a share of drafted tokens, 0 to 1")
        self._left = 0.0

    def accepted(self, drafted: Any) -> Any:
        """Of each sequence, for the numbers of tokens that were drafted."""
        most = int(max(drafted, default=0))
        upto = self._left + np.array([sum(self.share**at for at in range(1, count + 1)) for count in range(most + 1)])
        self._left = float(upto[most] % 1.0) if most else self._left
        return np.minimum(np.floor(upto + 1e-9).astype("int64")[drafted], drafted)


def _whole(batch: Any) -> Any:
    """Of which sequences the prompt is computed."""
    return batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np


def _tensor(values: object) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype="int64"))
