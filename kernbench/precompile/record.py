"""What a run compiles or finds in its cache, written down so that the next one, or another machine, compiles it ahead.

The record is a spec as :mod:`kernbench.precompile.space` reads it, made by listening to Triton's compiler: no user has to say
which types, constants and options a program will ask for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernbench.input_files import is_file
from kernbench.output_files import write_file
from kernbench.precompile.events import listening
from kernbench.precompile.target import launch_options, specialised_arguments, target_name

Entry = dict[str, Any]
_HEAD = "# Written by kernbench.precompile.record"


class Record:
    """Kernels that were compiled or found, each once.

    Attributes:
        entries: one per kernel, types, constants, options and target, as in a YAML file of spaces.
        unnamed: kernels that another process could not find by name (made inside a function), or with arguments that cannot
            be written down; with the reason.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.unnamed: dict[str, str] = {}

    def add(self, src: Any, metadata: Mapping[str, object]) -> None:
        """Note one call of the compiler."""
        try:
            point = {**specialised_arguments(src), **launch_options(metadata)}
            entry = {  # axes of one value each: they name the variant
                "kernel": _reference(src.fn),
                "axes": {name: [value] for name, value in point.items()},
                "targets": [target_name(metadata)],
            }
            self.entries.setdefault(json.dumps(entry, sort_keys=True), entry)
        except (ValueError, AttributeError) as reason:  # the latter: compiled from TTIR, of which there is no kernel
            self.unnamed[str(getattr(src, "name", src))] = str(reason)

    def read(self, path: str | Path) -> None:
        """Add the entries of a file that :meth:`write` has written. Raises ConfigError if it is none."""
        from kernbench.precompile.space import SpaceFile
        from kernbench.spec_files import read_spec

        for each in read_spec(Path(path), SpaceFile).kernels or ():
            entry = each.model_dump(exclude_unset=True)
            self.entries.setdefault(json.dumps(entry, sort_keys=True), entry)

    def write(self, path: str | Path) -> None:
        """Write the spec, whole or not at all, an entry per line. Each is JSON, which YAML includes."""
        lines = [_HEAD, "recorded: true", "kernels:"]
        lines += [f"- {json.dumps(self.entries[key])}" for key in sorted(self.entries)]
        write_file(path, "\n".join(lines) + "\n")


def is_record(spec: str | Path) -> bool:
    """Whether a spec is a record, by its first line."""
    path = Path(spec)
    if path.suffix not in (".yaml", ".yml") or not is_file(path):
        return False
    with path.open("rb") as file:
        return file.readline(len(_HEAD) + 2).rstrip() == _HEAD.encode()


@contextmanager
def record(path: str | Path | None = None) -> Iterator[Record]:
    """Record what this process's Triton compiles, or finds compiled, in a block; write it to ``path`` in the end."""
    found = Record()
    with listening(lambda src, metadata, cache_hit: found.add(src, metadata)):
        yield found
    if path is not None:
        found.write(path)


def _reference(kernel: object) -> str:
    """``module:name`` by which another process finds the kernel. Raises ValueError if there is none."""
    function = getattr(kernel, "fn", None)
    if function is None:
        raise ValueError("it was not made by @triton.jit")
    module, name = function.__module__, function.__qualname__
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    path = name
    for _ in range(8):
        if found is None or found is kernel:
            break
        found, path = getattr(found, "fn", None), f"{path}.fn"
    if found is not kernel or module == "__main__":
        raise ValueError(f"{module}:{name} is not a global name of an importable module")
    return f"{module}:{path}"
