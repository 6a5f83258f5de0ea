"""The tensors that a launch of a kernel is given, and whether the GPU reaches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernbench.memory.ledger import BACKWARD, PHASES
from kernbench.simulation.memory.storages import Block, Stored
from kernbench.simulation.memory.tensor_queries import plain, tells_of_looks
from kernbench.simulation.ranks.hosts import Host
from kernbench.triton_engine.machine import Launch


def given_tensor(arg: object) -> torch.Tensor | None:
    """The tensor that an argument of a kernel is, or into which a descriptor or a reinterpretation of Triton's points."""
    tensor = arg if isinstance(arg, torch.Tensor) else getattr(arg, "base", None)
    return tensor if isinstance(tensor, torch.Tensor) else None


def tensor_of(arg: object) -> torch.Tensor | None:
    """That tensor, plain."""
    tensor = given_tensor(arg)
    return None if tensor is None else plain(tensor)


def tensors_of(args: Sequence[object]) -> list[torch.Tensor]:
    """The tensors among the arguments of a kernel."""
    return [tensor for arg in args if (tensor := tensor_of(arg)) is not None]


def maps_nothing(tensor: torch.Tensor) -> bool:
    """Whether a kernel on a GPU reaches a tensor of the host: none does."""
    return False


def require_reach(
    launch: Launch,
    tensors: Sequence[torch.Tensor],
    host: Host,
    stored_of: Callable[[torch.Tensor], Stored | None],
    maps: Callable[[torch.Tensor], bool],
) -> None:
    """Raise Triton's ValueError unless the current GPU reaches all tensors of a launch.

    In a program with GPUs none is in the host's memory that is not pinned, nor another GPU's without access to it. Tensors
    of the context are with both.

    Args:
        tensors: of the launch's arguments.
        host: whose launch it is.
        stored_of: what is known of where a tensor is, None if nothing.
        maps: whether a kernel on a GPU reaches a tensor of the host.
    """
    with_host = not host.uses_gpu or any(map(tells_of_looks, tensors))
    for each in tensors:
        block = stored_of(each)
        if tells_of_looks(each):
            reached = True
        elif type(block) is not Block:
            reached = with_host or maps(each)
        else:
            reached = block.memory.sip == host.sip or block.shared or _reaches_peer(host, block)
        if not reached and each.numel():
            raise ValueError(_out_of_reach(launch, each, block))


def _reaches_peer(host: Host, block: Block) -> bool:
    """Whether a launch reaches memory of a GPU that is not the current one: torch has copied from this to that, or it is
    another process's, opened by CUDA's IPC.

    Where it is not known which is current it is taken to: in autograd's thread of each GPU, and in a graph.
    """
    if block.owner.host is not host or host.in_graph or host.phase % PHASES == BACKWARD:
        return True
    return (host.sip, block.memory.sip) in host.reaches


def _out_of_reach(launch: Launch, tensor: torch.Tensor, block: object) -> str:
    at = next(place for place, arg in enumerate(launch.args) if given_tensor(arg) is tensor)
    text = f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?): kernel {launch.name} is given a tensor "
    if not isinstance(block, Block):
        return f"{text}{tuple(tensor.shape)} of the host"
    index = block.memory.index
    return (
        f"{text}{tuple(tensor.shape)} of cuda:{index} while another GPU is current, on which it is launched. Launch it inside "
        f"of `with torch.cuda.device({index}):`, or set that device"
    )
