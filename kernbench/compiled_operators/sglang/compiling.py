"""``load_jit`` of ``sglang.kernels.jit``, which compiles a kernel from CUDA sources and loads it: what stands in for kernels.

A kernel that has no stand-in fails to be loaded, as one does that cannot be compiled: where SGLang has another way it takes it.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.compiled_operators.sglang.kernels import CompiledKernel

_KERNELS = "sglang._kernels"
"""The module in whose place ours is imported, so that its operators are defined."""

_NAME = re.compile(r"(?P<head>[\w:]+?)(?:<(?P<arguments>.*)>)?(?P<member>::\w+)?")


def load_by_definition(module: ModuleType) -> None:
    """Have kernels of CUDA be loaded by their definitions: ``sglang.kernels.jit.utils.compile.loader``."""
    loader: Any = module
    load = loader.load_jit

    @functools.wraps(load)
    def load_jit(*marks: str, **how: Any) -> Any:
        if not how.get("cuda_files"):
            return load(*marks, **how)  # C++ for the host
        return loaded(vars(importlib.import_module(_KERNELS)), how["cuda_files"], how.get("cuda_wrappers") or ())

    loader.load_jit = load_jit


def loaded(
    known: Mapping[str, CompiledKernel], files: Sequence[Any], wrappers: Sequence[tuple[str, str]]
) -> SimpleNamespace:
    """A module with the functions that a program is to call.

    Args:
        known: what stands in for functions of C++.
        files: the sources.
        wrappers: the functions' names, and what they are in C++.

    Raises:
        NotImplementedError: none of them has a stand-in.
    """
    functions: dict[str, Callable[..., None]] = {}
    for name, cpp in wrappers:
        plain, template = name_of(cpp)
        functions[name] = known[plain].function(template) if plain in known else _missing(plain, files)
    if not any(name_of(cpp)[0] in known for _, cpp in wrappers):
        _missing(", ".join(name_of(cpp)[0] for _, cpp in wrappers) or "a kernel", files)()
    return SimpleNamespace(**functions)


def name_of(cpp: str) -> tuple[str, list[Any]]:
    """The name of a function of C++, and its template arguments: whole numbers, truth values, other text.

    >>> name_of("RopeKernel<true, 128, Pair<bf16_t, 2>>::run")
    ('RopeKernel::run', [True, 128, 'Pair<bf16_t, 2>'])
    """
    matched = _NAME.fullmatch(cpp.replace("\n", " ").strip())
    if matched is None:
        return cpp, []
    return matched["head"] + (matched["member"] or ""), [_value(each) for each in _split(matched["arguments"] or "")]


def _split(arguments: str) -> Iterator[str]:
    """At commas outside of brackets."""
    depth, begin = 0, 0
    for at, sign in enumerate(arguments):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            yield arguments[begin:at].strip()
            begin = at + 1
    if last := arguments[begin:].strip():
        yield last


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _missing(kernel: str, files: Sequence[Any]) -> Callable[..., None]:
    def refuse(*args: object) -> None:
        raise NotImplementedError(
            f"sglang: {kernel} ({', '.join(map(str, files))}) is compiled from CUDA sources while the program runs, and has no "
            "stand-in (kernbench stand-ins sglang lists those that have)"
        )

    return refuse
