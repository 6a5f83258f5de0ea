"""What all of the package's functions share: kernels, caches of keys and values, formats, and what is refused."""

from __future__ import annotations

import importlib

import torch

Tensor = torch.Tensor
Cache = Tensor | tuple[Tensor, Tensor]
Format = str | torch.dtype


def launch(name: str, *args: object) -> None:
    """Launch a kernel (``kernbench.compiled_operators.flashinfer``)."""
    importlib.import_module("flashinfer._kernels").launch(name, *args)


def refuse(function: str, **given: object) -> None:
    """What has no definition here."""
    for what, value in given.items():
        if isinstance(value, torch.Tensor) or value:
            raise NotImplementedError(f"the stand-in for flashinfer: {function} has no {what}")


def refuse_positions(function: str, mode: str) -> None:
    """Positions that attention itself brings into the scores."""
    if mode != "NONE":
        raise NotImplementedError(f"the stand-in for flashinfer: {function} has no pos_encoding_mode {mode!r}")


def dtype_of(given: Format | None, other: torch.dtype) -> torch.dtype:
    """A format by name or as it is; None: the other one."""
    if given is None:
        return other
    return given if isinstance(given, torch.dtype) else getattr(torch, given)


def halves(cache: Cache, layout: str) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache, ``[pages, page, heads, size]``: one tensor with both behind its first dimension, or two;
    ``layout``: ``"NHD"``, or ``"HND"`` where heads are before what is in a page."""
    keys, values = cache if isinstance(cache, tuple) else cache.unbind(1)
    return (keys, values) if layout == "NHD" else (keys.transpose(1, 2), values.transpose(1, 2))


def factor(*scales: float | Tensor | None) -> float:
    """The product of scales, of which none may be a tensor."""
    found = 1.0
    for each in scales:
        if isinstance(each, torch.Tensor):
            raise NotImplementedError("the stand-in for flashinfer takes scales that are numbers")
        found *= 1.0 if each is None else each
    return found


def out_of(given: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where results are written: what is given for it, which must fit, or a new tensor."""
    if given is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if tuple(given.shape) != shape or given.dtype != dtype:
        raise ValueError(
            f"results are {dtype} of {shape}, and what is given for them is {given.dtype} of {given.shape}"
        )
    return given
