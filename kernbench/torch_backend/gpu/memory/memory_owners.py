"""What programs use the memory of simulated GPUs for: parameters, gradients, state of optimizers, buffers of communication.

Modules and optimizers say so through torch's public hooks, and are asked again when a report is made. What is unclaimed
is sorted by allocation time (:mod:`kernbench.memory.ledger`): hooks also say whether the program is in a backward pass, in
a step of an optimizer, or elsewhere.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, cast

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from kernbench.memory.ledger import (
    BACKWARD,
    BUFFERS,
    COMMUNICATION,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    PHASES,
    SIZE,
    STEP,
    UNSHARDED,
    Entry,
    claim,
    next_phase,
)  # fmt: skip
from kernbench.memory.modules import ModuleUse
from kernbench.memory.remedies import ModelInput, ProgramState
from kernbench.simulation.memory.storages import NOTE, Block
from kernbench.simulation.order.shadow_memory import forget
from kernbench.simulation.ranks.hosts import Host
from kernbench.torch_backend.gpu.device.devices import bound_devices, current_device
from kernbench.torch_backend.gpu.memory.unwritten_parameters import remark_on
from kernbench.torch_backend.gpu.tensors.placement import block_of, stored_in
from kernbench.torch_backend.operations.recorder import Recorder
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.autograd._engine_run_backward", "every backward pass is a call of it", looked_up_by=(
        "torch.autograd.backward", "torch.autograd.grad",
    )),
    Reliance("torch.autograd.graph._engine_run_backward", "the same, by its own name"),
    Reliance(
        "torch.nn.Module._wrapped_call_impl", "a call of a module has a frame of it, with the module and its arguments",
        parameters=("self", "args", "kwargs"), holds=lambda call: call is torch.nn.Module.__call__,
    ),
    Reliance(
        "torch.autograd._get_sequence_nr", "the number that the next node gets: an operation that is dispatched has the one "
        "before it",
    ),
    Reliance("torch._C._current_autograd_node", "the node whose backward pass runs on this thread"),
    Reliance("torch.autograd.graph.Node", "a node knows its number", has=("_sequence_nr",)),
    Reliance(
        "torch.distributed.fsdp._flat_param.FlatParameter", "FSDP1's parameters know their size over all ranks",
        holds=lambda cls: "_unpadded_unsharded_size" in cls.__annotations__,
    ),
    Reliance("torch._ops.OpOverload", "an operation that is under way says its name", has=("name",)),
    Reliance("torch.UntypedStorage.resize_", "FSDP gives parameters that it has gathered memory, and takes it away, with it"),
    Reliance("torch.nn.Module._apply", "`to`, `cuda` and `to_empty` are calls of it", parameters=("self", "fn"), looked_up_by=(
        "torch.nn.Module.to", "torch.nn.Module.cuda", "torch.nn.Module.to_empty",
    )),
    Reliance("torch.nn.modules.module", "hooks for all modules, public", has=(
        "register_module_parameter_registration_hook", "register_module_module_registration_hook",
    )),
    Reliance("torch.optim.optimizer", "hooks for all optimizers, public", has=(
        "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook",
    )),
    Reliance(
        "torch.distributed.fsdp.FSDPModule._get_fsdp_state", "its parameter group knows gathered parameters",
        parameters=("self",),
    ),
)  # fmt: skip

_stock_run_backward: Callable[..., Any] = torch.autograd._engine_run_backward
_stock_apply: Callable[..., Any] = torch.nn.Module._apply
_stock_resize: Callable[..., Any] = torch.UntypedStorage.resize_
_CALL: Any = torch.nn.Module._wrapped_call_impl.__code__

_MOST_NODES = 1 << 16
"""Nodes of a graph whose module is kept; when there are more, all are forgotten: graphs that old have been gone through."""


def entries_of(value: object) -> Iterator[Entry]:
    """The ledger's entries of a tensor's memory on a simulated GPU; none for what is no tensor or elsewhere."""
    if isinstance(value, torch.Tensor):
        for tensor in stored_in(value):
            block = block_of(tensor)
            if block is not None and block.entry is not None:
                yield block.entry


def claim_communication(tensors: Iterable[torch.Tensor]) -> None:
    """Note that tensors took part in a collective. Flat ones are buffers (DDP's, FSDP's); results of layers are not."""
    for tensor in tensors:
        if tensor.dim() == 1:
            for entry in entries_of(tensor):
                claim(entry, COMMUNICATION)


class _OfRank:
    """The modules and optimizers of one rank.

    Attributes:
        modules: those that have parts.
        optimizers: that have made steps, and how many.
        names: of the module that a parameter belongs to, by the parameter's identity.
        named: whether no module has been made since all were looked through.
        uses: of modules that have been called.
        of_node: of the module in which a node of autograd's graph was made, by the node's number.
        given: the first tensor that a model was called with last, in the phase ``given_in``.
    """

    def __init__(self) -> None:
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.names: dict[int, str] = {}
        self.named = True
        self.uses: weakref.WeakKeyDictionary[torch.nn.Module, ModuleUse] = weakref.WeakKeyDictionary()
        self.of_node: dict[int, ModuleUse] = {}
        self.given: ModelInput | None = None
        self.given_in = -1

    def claim_all(self) -> None:
        """Whose all is that is alive."""
        self.named = True
        for path, module in self._named_modules():
            self._claim_module(path, module)
        for optimizer in list(self.optimizers):
            self.claim_gradients(optimizer)
            self.claim_state(optimizer)

    def _named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        modules = list(self.modules)
        inner = {id(child) for module in modules for child in module.children()}
        for root in modules:
            if id(root) not in inner:
                yield from root.named_modules(prefix=type(root).__name__)

    def module(self, frame: FrameType | None, phase: int) -> ModuleUse | None:
        """The innermost module that is called in a frame or its callers. In a backward pass it is the one that made the node
        which runs, unless that calls modules itself, as recomputation does."""
        innermost: ModuleUse | None = None
        outermost: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if code is _CALL:
                module = frame.f_locals["self"]
                use = self.uses.get(module)
                if innermost is None:
                    innermost = use or self._called(module, frame)
                    if use is not None and phase == self.given_in:
                        break  # callers are read for a module's first call, and once in a phase
                elif use is None:
                    self._called(module, frame)
                outermost = frame
            elif code is _BACKWARD:
                break
            frame = frame.f_back
        if innermost is None:
            node = torch._C._current_autograd_node()
            return None if node is None else self.of_node.get(node._sequence_nr())
        if frame is None and phase % PHASES == FORWARD:
            self.given, self.given_in = _given(outermost) or self.given, phase
        if torch.is_grad_enabled():
            if len(self.of_node) >= _MOST_NODES:
                self.of_node.clear()
            self.of_node.setdefault(torch.autograd._get_sequence_nr() - 1, innermost)
        return innermost

    def _called(self, module: torch.nn.Module, frame: FrameType) -> ModuleUse:
        """Note a module's first call."""
        given = sum(entry[SIZE] for tensor in _arguments(frame) for entry in entries_of(tensor))
        use = self.uses[module] = ModuleUse(type(module).__name__, given)
        self.named = False
        return use

    def divided(self) -> dict[str, int]:
        """Among how many ranks parameters, gradients and optimizer state are divided, by category."""
        modules = [*self.modules]
        managed = [parameter for module in modules for parameter in _managed_by_fsdp(module)]
        gathered = {id(getattr(each, "_unsharded_param", None)) for each in managed}
        parameters = {id(each): each for module in modules for each in module._parameters.values()}
        parameters.update((id(each.sharded_param), each.sharded_param) for each in managed)
        kept = [each for key, each in parameters.items() if each is not None and key not in gathered]
        mine = sum(map(_stored_size, kept))
        ways = max(round(sum(map(_whole_size, kept)) / mine), 1) if mine else 1
        found = dict.fromkeys((PARAMETERS, GRADIENTS, OPTIMIZER), ways)
        for optimizer in [*self.optimizers]:
            group = getattr(optimizer, "process_group", None)
            if isinstance(
                group, torch.distributed.ProcessGroup
            ):  # ZeroRedundancyOptimizer: each rank has a part of the state
                found[OPTIMIZER] = max(found[OPTIMIZER], group.size())
        held = sum(
            _stored_size(each) for optimizer in [*self.optimizers] for group in optimizer.param_groups
            for each in group["params"]
        )  # fmt: skip
        if held and mine >= 2 * held:  # of copies that are divided, as Megatron's distributed optimizer has them
            found[OPTIMIZER] = max(found[OPTIMIZER], ways * round(mine / held))
        return found

    def _claim_module(self, path: str, module: torch.nn.Module) -> None:
        use = self.uses.get(module)
        if use is not None:
            use.name = path
        for tensor in _gathered(module):
            _claim(tensor, UNSHARDED, path)
        for parameter in module._parameters.values():
            if parameter is not None:
                self.names[id(parameter)] = path
                _claim(parameter, PARAMETERS, path)
                _claim(_gradient(parameter), GRADIENTS, path)
        for buffer in module._buffers.values():
            _claim(buffer, BUFFERS, path)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Those of all modules, by name."""
        for path, module in self._named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield f"{path}.{name}", buffer

    def name_of(self, parameter: object) -> str | None:
        """The module that has a parameter."""
        return self.names.get(id(parameter))

    def claim_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Parameters of an optimizer and their gradients."""
        names = self.names
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter))
                _claim(parameter, PARAMETERS, name)
                _claim(_gradient(parameter), GRADIENTS, name)

    def claim_state(self, optimizer: torch.optim.Optimizer) -> None:
        """What an optimizer keeps."""
        for parameter, state in optimizer.state.items():
            name = self.names.get(id(parameter))
            for value in state.values() if isinstance(state, dict) else ():
                _claim(value, OPTIMIZER, name)


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient; FSDP's views have none, and torch warns where it is read from them."""
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def _claim(value: object, category: str, owner: str | None) -> None:
    for entry in entries_of(value):
        claim(entry, category, owner)


def _gathered(module: torch.nn.Module) -> Iterator[Any]:
    """What FSDP2 has gathered of the parameters that a module manages."""
    for parameter in _managed_by_fsdp(module):
        yield getattr(parameter, "_unsharded_param", None)
        yield from getattr(parameter, "all_gather_outputs", ())


def _managed_by_fsdp(module: torch.nn.Module) -> Sequence[Any]:
    """FSDP2's notes on the parameters that a module manages."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # who has FSDP's modules has imported it: that takes long
    if fsdp is None or not isinstance(module, fsdp.FSDPModule):
        return ()
    groups: Sequence[Any] = getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())  # one for each mesh
    return [parameter for group in groups for parameter in getattr(group, "fsdp_params", ())]


def _arguments(frame: FrameType) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a module's call."""
    given = frame.f_locals
    for value in (*given["args"], *given["kwargs"].values()):
        if isinstance(value, torch.Tensor):
            yield value


def _given(frame: FrameType | None) -> ModelInput | None:
    """What a model is called with in a frame."""
    first = None if frame is None else next((each for each in _arguments(frame) if each.dim()), None)
    if frame is None or first is None:
        return None
    return None if first.is_nested else ModelInput(type(frame.f_locals["self"]).__name__, tuple(map(int, first.shape)))


def _stored_size(parameter: torch.Tensor) -> int:
    """Bytes of what this rank has of a parameter."""
    return sum(tensor.numel() * tensor.element_size() for tensor in stored_in(parameter))


def _whole_size(parameter: torch.Tensor) -> int:
    """Bytes of a parameter over all ranks that share it: of a DTensor, and of FSDP1's flat ones."""
    flat = getattr(parameter, "_unpadded_unsharded_size", None)
    return (parameter.numel() if flat is None else flat.numel()) * parameter.element_size()


class MemoryOwnersOfTorch:
    """Knows it for the ranks of one spawn, from :meth:`open` to :meth:`close`."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Host, _OfRank] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []

    def open(self) -> None:
        """Listen to torch's hooks."""
        self._handles = [
            module_hooks.register_module_parameter_registration_hook(self._made_part),
            module_hooks.register_module_module_registration_hook(self._made_part),
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Listen no more. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def claim_all(self, host: Host) -> None:
        """Note in the ledger whose all is that is alive."""
        known = self._known.get(host)
        if known is not None:
            with host.as_one():
                known.claim_all()

    def before_backward(self, host: Host) -> None:
        """A backward pass begins: the modules that it goes through are alive now."""
        known = self._known.get(host)
        if known is not None and not known.named:
            with host.as_one():
                known.claim_all()

    def number(self, sip: int) -> int:
        """The number of a SIP to the rank that runs."""
        device = current_device()
        return sip if device is None else device.index_of(sip)

    def operation(self, frame: FrameType | None) -> str:
        """The operation of torch that is under way in a frame or its callers; empty if none is."""
        while frame is not None:
            if frame.f_code is Recorder.__torch_dispatch__.__code__:
                func = frame.f_locals["func"]
                return str(func.name() if isinstance(func, torch._ops.OpOverload) else func)
            frame = frame.f_back
        return ""

    def module(self, host: Host, frame: FrameType | None) -> ModuleUse | None:
        """The module that allocates in a frame or its callers; None if none does."""
        known = self._known.get(host)
        return None if known is None else known.module(frame, host.phase)

    def state(self, host: Host, frame: FrameType | None) -> ProgramState:
        """What the program of a process, which is in this frame, does already."""
        known = self._known.get(host)
        if known is None:
            return ProgramState()
        known.given_in = -1  # what the model is called with now
        known.module(frame, host.phase)
        return ProgramState(
            trains=torch.is_grad_enabled() or host.backward_passes > 0, given=known.given,
            inputs={use.name: use.input_bytes for use in known.uses.values()}, divided=known.divided(),
        )  # fmt: skip

    def _of_current(self) -> tuple[Host, _OfRank] | None:
        device = current_device()
        if device is None:
            return None
        host = device.host
        known = self._known.get(host)
        if known is None:
            known = self._known[host] = _OfRank()
        return host, known

    def _made_part(self, module: torch.nn.Module, name: str, part: object) -> None:
        found = self._of_current()
        if found is not None:
            found[1].modules.add(module)
            found[1].named = False
            if isinstance(part, torch.nn.Parameter):
                _claim(part, PARAMETERS, None)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        found = self._of_current()
        if found is None:
            return
        host, known = found
        with host.as_one():  # a parameter may be of the program's class, and its gradient what that computes
            if optimizer not in known.optimizers or not known.named:
                known.optimizers.setdefault(optimizer, 0)
                known.claim_all()
                if not known.optimizers[optimizer]:
                    remark_on(bound_devices().simulation, optimizer, known.buffers(), known.name_of)
            else:
                known.claim_gradients(optimizer)
        known.of_node.clear()
        host.phase = next_phase(host.phase, STEP)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        found = self._of_current()
        if found is None:
            return
        host, known = found
        host.phase = next_phase(host.phase, FORWARD)
        count = known.optimizers[optimizer] = known.optimizers.get(optimizer, 0) + 1
        if count <= 2:  # it is made in the first step, and of parameters without gradients later
            with host.as_one():
                known.claim_state(optimizer)


def _run_backward(*args: object, **kwargs: object) -> Any:
    """``torch.autograd``'s entry to a backward pass."""
    device = current_device()
    if device is None:
        return _stock_run_backward(*args, **kwargs)
    host = device.host
    before, host.phase = host.phase, next_phase(host.phase, BACKWARD)
    host.backward_passes += 1
    memories = device.simulation.memories
    if memories.owners is not None:
        memories.owners.before_backward(host)
    try:
        return _stock_run_backward(*args, **kwargs)
    finally:
        host.phase = next_phase(host.phase, before % PHASES)


_BACKWARD = _run_backward.__code__


def _apply(module: torch.nn.Module, *args: object, **kwargs: object) -> torch.nn.Module:
    """``Module._apply``: what ``to``, ``cuda`` and ``to_empty`` put elsewhere."""
    mine = current_device()
    if mine is None:
        return cast(torch.nn.Module, _stock_apply(module, *args, **kwargs))
    before, mine.doing.moving_module = mine.doing.moving_module, True
    try:
        result: torch.nn.Module = _stock_apply(module, *args, **kwargs)
    finally:
        mine.doing.moving_module = before
    for parameter in module._parameters.values():
        _claim(parameter, PARAMETERS, None)
    for buffer in module._buffers.values():
        _claim(buffer, BUFFERS, None)
    return result


def _resize(storage: torch.UntypedStorage, nbytes: int) -> Any:
    """``UntypedStorage.resize_``: FSDP takes the memory of gathered parameters away by it, and gives it back."""
    block = getattr(storage, NOTE, None)
    if type(block) is not Block or block.nbytes == nbytes:
        return _stock_resize(storage, nbytes)
    mine = current_device()
    graph = None if mine is None else mine.host.capture
    if graph is not None:  # the values of a replay need it, too
        graph.add(lambda: _stock_resize(storage, nbytes))
    if not nbytes:
        claim(block.entry, UNSHARDED)
    forget(storage, captured=None if graph is None else nbytes)
    block.resize(nbytes)
    if nbytes:
        claim(block.entry, UNSHARDED)
    return _stock_resize(storage, nbytes)


def install(patches: Patches) -> None:
    """Let torch tell of backward passes and of storages that change their size."""
    wrapped = functools.wraps(_stock_run_backward)(_run_backward)
    patches.set(torch.autograd, "_engine_run_backward", wrapped)
    patches.set(torch.autograd.graph, "_engine_run_backward", wrapped)
    patches.set(torch.UntypedStorage, "resize_", _resize)
    patches.set(torch.nn.Module, "_apply", functools.wraps(_stock_apply)(_apply))
