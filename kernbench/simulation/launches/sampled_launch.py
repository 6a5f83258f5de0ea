"""Launches whose values are not needed: what they take, from what a few of their programs do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kernbench.cost.work import Cost, StatedWork, over_links
from kernbench.sim_engine.data_executor import Deferred, Finished
from kernbench.simulation.launches.kernel_tensors import tensor_of, tensors_of
from kernbench.simulation.launches.remote_traffic import RemoteTraffic
from kernbench.simulation.launches.triton_launch import TritonLaunch, cost_of, note_cost, shape_key
from kernbench.simulation.memory.reserved import reserved_zeros
from kernbench.simulation.memory.storages import Block
from kernbench.triton_engine.launching import scaled_counts
from kernbench.triton_engine.machine import Execution

_SAMPLED_PROGRAMS = 2


class SampledLaunch(TritonLaunch):
    """A launch whose values are not needed: a few programs run without storing, and their counts are scaled up.

    Bytes that programs share count once: they are capped at the size of the tensors. A launch that cannot be sampled (it
    waits for another writer) takes the time of reading its tensors.
    """

    def start_batch(self, batch: Sequence[Deferred]) -> Finished:
        """Count what a few programs do, for each launch."""
        launches = [launch for launch in batch if isinstance(launch, SampledLaunch)]
        try:
            for launch in launches:
                launch.price()
        finally:
            for launch in launches:
                launch.attempt.fulfil()
        return Finished([None] * len(launches))

    def price(self) -> None:
        """Note in its operation what it costs."""
        try:
            with self.launcher.hosts.current().as_one():
                cost = self.cost()
            note_cost(self, cost)
            self.launcher.engine.set_duration(self.op, cost.seconds)
        except BaseException:  # Ctrl-C, or a limit of a test: its stream goes on
            self.launcher.engine.break_off(self.op)
            raise

    def cost(self) -> Cost:
        """What it occupies its stream for, from the counts of a few programs."""
        launch, known = self.launch, self.launcher.sampled
        homes = tuple(map(self._is_mapped, launch.args))
        shapes = tuple(map(shape_key, launch.args))
        key = (id(launch.program), launch.grid, launch.cold, launch.in_graph, shapes, homes)
        if key not in known:
            known[key] = self._sample()
        return known[key]

    def _is_mapped(self, arg: object) -> bool:
        """Whether it is a tensor in memory of the host."""
        tensor = tensor_of(arg)
        stored = None if tensor is None else self.launcher.streams.stored_of(tensor)
        return isinstance(stored, Block) and stored.mapped

    def _nobody_has(self, arg: object) -> bool:
        """Whether it is a tensor without bytes."""
        if not isinstance(arg, torch.Tensor):
            return False
        stored = self.launcher.streams.stored_of(arg)
        return arg.is_meta or (stored is not None and stored.hollow)

    def _with_stand_ins(self, args: Sequence[Any]) -> list[Any]:
        """Arguments, with memory for tensors that have none; the same for one that is given several times."""
        made: dict[Any, torch.Tensor] = {}
        values = []
        for arg in args:
            if self._nobody_has(arg):
                memory = self.launcher.streams.stored_of(arg)
                known = (id(memory or arg), arg.storage_offset(), arg.shape, torch.Tensor.stride(arg), arg.dtype)
                if known not in made:
                    made[known] = _stand_in(arg)
                arg = made[known]
            values.append(arg)
        return values

    def _sample(self) -> Cost:
        launch, device = self.launch, self.launcher.engine.topology.device
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(launch.args))
        programs = math.prod(launch.grid)
        if programs:
            values = self._with_stand_ins(launch.args)
            there = replace(launch, args=values)
            execution = Execution([there], self.launcher.memory, dry=True, only=_SAMPLED_PROGRAMS)
            if execution.run() == "done":
                counts = scaled_counts(execution)
                self._say_what_is_assumed(execution)
                scale = programs / max(execution.sampled or 1, 1)
                return self._over_host_link(cost_of(self, counts, there), execution, scale)
        return StatedWork(nbytes).cost(device)

    def _say_what_is_assumed(self, execution: Execution) -> None:
        if any(counter is not None and counter.contention(1) is not None for counter in execution.updates):
            self.launcher.say(
                f"assumed: atomic updates of {self.launch.name} whose places are not known without data are spread evenly"
            )

    def _over_host_link(self, cost: Cost, execution: Execution, scale: float) -> Cost:
        """With what all programs move to and from memory of the host, at most all that a tensor has there, once each way."""
        engine = self.launcher.engine
        remote = RemoteTraffic(engine.topology)
        for base, traffic in execution.traffic()[0].items():
            home = engine.memory.find_host(base)
            if home is not None and home.space == "host":
                remote.read_host(self.op.sip, min(traffic.read * scale, home.nbytes))
                remote.write_host(self.op.sip, min(traffic.written * scale, home.nbytes))
        return over_links(cost, remote.seconds, remote.latency) if remote.nbytes else cost


def _stand_in(arg: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor that has none: zeros, so that indices read from it are some; it is never written, so it costs address
    space only."""
    return reserved_zeros(arg.dtype, arg.shape, torch.Tensor.stride(arg))
