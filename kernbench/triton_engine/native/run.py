"""What the machine calls in place of a run of instructions: the interpreter at first, then native functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from kernbench.environment_variables import one_of
from kernbench.triton_engine.batch import Batch
from kernbench.triton_engine.frontend.program import Instr, OpInfo
from kernbench.triton_engine.frontend.types import TORCH_DTYPE, Ty
from kernbench.triton_engine.values import Affine, Box, Value, dense_int, dense_mask

from .compiler import available
from .group import FusedGroup
from .plan import FusionPlan, Kind, Varying, make_plan, native

VARIABLE = "KERNBENCH_TRITON_NATIVE"
#: Elements, over all instructions of a run, that are computed by the interpreter before native code is made: about what takes
#: as long as LLVM. Small tiles count as ``_LEAST``, for what Python takes.
_COLD = 1 << 25
_LEAST = 1 << 12
#: Plans of one run; values of further kinds are left to the interpreter.
_PLANS = 16


def mode() -> str:
    """``auto``, ``always`` (from the first time on) or ``never``.

    Raises:
        ConfigError: the variable has another value.
    """
    return one_of(VARIABLE, "auto", "always", "never")


class _PlanFor:
    """A plan, and what is left to compute before it is worth its functions."""

    def __init__(self, plan: FusionPlan | None, cold: int) -> None:
        self.plan = plan
        self.cold = cold


class FusedRun:
    """Neighbouring instructions of a block that have no effect. ``types`` are those of all slots."""

    def __init__(
        self,
        instrs: Sequence[Instr],
        plain: Sequence[tuple[Callable[..., None], OpInfo]],
        types: Sequence[Ty],
        cold: int,
    ) -> None:
        self.instrs = tuple(instrs)
        self.plain = tuple(plain)
        self.types = types
        made = {r for i in instrs for r in i.results}
        self.kills = tuple({k for i in instrs for k in i.kills})
        self.kept = frozenset(made - set(self.kills))
        self.sizes = [max((t.numel for t in i.info.result_types), default=1) for i in instrs]
        self.cold = cold
        self.afterwards = cold
        self.plans: dict[object, _PlanFor] = {}

    def __call__(self, env: list[Any], batch: Batch) -> None:
        """Run the instructions on a batch."""
        if self.cold > 0:
            self.cold -= self._work(batch)
            self._interpret(env, batch)
            return
        pending, key, kinds, values = self._look(env, batch)
        waiting = self.plans.get(key)
        if waiting is None:
            if len(self.plans) >= _PLANS:
                self._interpret(env, batch, pending)
                return
            plan = make_plan(pending, kinds, self.types, self.kept)
            waiting = self.plans[key] = _PlanFor(plan, self.afterwards if self.plans else 0)
        if waiting.plan is None or waiting.cold > 0:
            waiting.cold -= self._work(batch)
            self._interpret(env, batch, pending)
            return
        for step in waiting.plan.steps:
            if type(step) is FusedGroup:
                step.run(batch, env, [values[s] if s in values else env[s] for s in step.inputs])
            else:
                env[step.result] = step.fn(batch, *[env[a] for a in step.args])  # type: ignore[union-attr]
        for slot, other in waiting.plan.copies:
            env[slot] = env[other]
        for slot in self.kills:
            env[slot] = None

    def _work(self, batch: Batch) -> int:
        return sum([max(_LEAST, n * batch.size) for n in self.sizes])

    def _interpret(self, env: list[Any], batch: Batch, pending: list[Instr] | None = None) -> None:
        """Run the instructions one by one; ``pending``: those that have not been, the others need not be once more."""
        info = None
        try:
            if pending is None:
                for run, info in self.plain:  # noqa: B007
                    run(env, batch)
                return
            for instr in pending:
                info = instr.info
                env[instr.results[0]] = instr.fn(batch, *[env[a] for a in instr.args])
        except Exception:
            batch.doing = info
            raise
        for slot in self.kills:
            env[slot] = None

    def _look(self, env: list[Any], batch: Batch) -> tuple[list[Instr], Any, dict[int, Kind], dict[int, Any]]:
        """Evaluate what depends on no tensor. The instructions that are left, the kinds of values that they find (and a key
        that says the same), and the values that are not in slots as a function wants them."""
        pending: list[Instr] = []
        open_: set[int] = set()
        kinds: dict[int, Kind] = {}
        values: dict[int, Any] = {}
        key: list[Any] = []
        info = None
        try:
            for index, instr in enumerate(self.instrs):
                info = instr.info
                args = instr.args
                for a in args:
                    if a in open_ or type(env[a]) is Tensor:
                        break
                else:
                    env[instr.results[0]] = instr.fn(batch, *[env[a] for a in args])
                    continue
                pending.append(instr)
                key.append(index)
                for a in args:
                    if a not in open_ and a not in kinds:
                        kinds[a] = kind = self._kind(a, env[a], batch, values)
                        key.append(kind)
                open_.add(instr.results[0])
        except Exception:
            batch.doing = info
            raise
        return pending, tuple(key), kinds, values

    def _kind(self, slot: int, v: Value, batch: Batch, values: dict[int, Any]) -> Kind:
        """What a plan must know of a value; integers and masks that are not plainly affine become tensors for it."""
        ty = self.types[slot]
        match v:
            case bool():
                return v
            case int() | float():
                return "number"
            case Affine(per_lane=None):
                varies = [n if s else 1 for s, n in zip(v.tile_strides, ty.shape, strict=True)]
                return Varying(tuple([not s for s in v.lane_strides]), tuple(varies), affine=True)
            case Affine():
                v = dense_int(v, batch.lanes, ty.shape, ty.dtype)
            case Box():
                v = dense_mask(v, batch.lanes, ty.shape)
        if type(v) is bool:
            values[slot] = v
            return v
        if type(v) is not Tensor or v.dtype != TORCH_DTYPE.get(ty.elem) or v.ndim != len(batch.lanes) + len(ty.shape):
            return "other"
        values[slot] = v
        lanes = len(batch.lanes)
        return Varying(tuple([n == 1 for n in v.shape[:lanes]]), tuple(v.shape[lanes:]))


def fused(
    instrs: Sequence[Instr], plain: list[tuple[Callable[..., None], OpInfo]], types: Sequence[Ty]
) -> list[tuple[Callable[..., None], OpInfo]]:
    """The instructions of a block with a :class:`FusedRun` in place of each stretch that has at least two native ones."""
    how = mode()
    if how == "never" or (not any(map(native, instrs))) or not available():
        return plain
    out: list[tuple[Callable[..., None], OpInfo]] = []
    start = 0
    while start < len(instrs):
        end = start
        while end < len(instrs) and _fits(instrs[end]):
            end += 1
        if sum(map(native, instrs[start:end])) >= 2:
            run = FusedRun(instrs[start:end], plain[start:end], types, 0 if how == "always" else _COLD)
            out.append((run, instrs[start].info))
        else:
            out += plain[start : max(end, start + 1)]
            end = max(end, start + 1)
        start = end
    return out


def _fits(instr: Instr) -> bool:
    """Whether a run may have an instruction: it has no effect and cannot fail."""
    row = instr.info.row
    return row.passed or row.reshapes is not None or native(instr)
