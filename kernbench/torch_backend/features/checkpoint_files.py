"""``torch.save`` and ``torch.load``: copies from GPUs, and tensors whose values are not computed.

A checkpoint of a large model would be gigabytes of nothing. A storage without values gets a record of its size and no bytes
(as with ``torch.serialization.skip_data``: the file is sparse), and an entry in a record of the names of all such storages.
What is loaded of them is unknown again. A program with data does not load such a file: it would read zeros.

``torch.save`` in the format before torch 1.6, and other libraries' formats, write the bytes that hollow tensors do not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.simulation.memory.storages import NOTE, Block, Stored
from kernbench.simulation.simulation import Simulation
from kernbench.torch_backend.hollow.shapes import Described, allocate
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.serialization"
UNKNOWN = "kernbench/unknown_storages.json"
"""The record of the names of those storages in a file that have no values."""

RELIES_ON = (
    Reliance(
        f"{MODULE}._save", "`torch.save` writes a zip file with it", looked_up_by=(f"{MODULE}.save",),
        parameters=("obj", "zip_file"),
    ),
    Reliance(
        f"{MODULE}._load", "`torch.load` reads a zip file with it", looked_up_by=(f"{MODULE}.load",),
        parameters=("zip_file", "map_location", "pickle_module", "pickle_file", "overall_storage"),
    ),
    Reliance("torch._C.PyTorchFileWriter", "a record without its bytes", has=("write_record", "write_record_metadata")),
    Reliance(
        "torch._C.PyTorchFileReader", "a record's bytes as a tensor's storage",
        has=("has_record", "get_record", "get_storage_from_record"),
    ),
)  # fmt: skip


class _Writer:
    """A zip file to which storages are written: those of GPUs are copied to the host first, those without values are their
    sizes."""

    def __init__(self, file: Any, to_host: Callable[[int, int], object]) -> None:
        self._file = file
        self._to_host = to_host
        self.unknown: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_record(self, name: str, data: Any, size: int) -> None:
        stored: Stored | None = getattr(data, NOTE, None)
        if isinstance(stored, Block):
            self._to_host(stored.memory.sip, size)
        if stored is None or not stored.hollow:
            self._file.write_record(name, data, size)
            return
        self._file.write_record_metadata(name, size)
        self.unknown[name] = size


class _Reader:
    """A zip file of which some storages are unknown."""

    def __init__(self, file: Any, unknown: Iterable[str], make: Callable[[int], torch.Tensor]) -> None:
        self._file = file
        self._unknown = frozenset(unknown)
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_storage_from_record(self, name: str, size: int, dtype: Any) -> torch.Tensor:
        if name in self._unknown:
            return self._make(size)
        found: torch.Tensor = self._file.get_storage_from_record(name, size, dtype)
        return found


def install(patches: Patches, simulation: Simulation) -> None:
    """Write and read no bytes of what has no values."""
    serialization: Any = torch.serialization
    save, load = serialization._save, serialization._load

    def made(size: int) -> torch.Tensor:
        host = simulation.hosts.current()
        with host.as_one():
            tensor = allocate(Described((size,), (1,), torch.uint8))
        simulation.storages.note(tensor).hollow = True
        return tensor

    def saving(obj: object, zip_file: Any, *args: object, **kwargs: object) -> Any:
        writer = _Writer(zip_file, simulation.host_reads.to_host)
        result = save(obj, writer, *args, **kwargs)
        if writer.unknown:
            names = json.dumps(sorted(writer.unknown)).encode()
            zip_file.write_record(UNKNOWN, names, len(names))
            simulation.assumptions.left_out(sum(writer.unknown.values()))
        return result

    def loading(
        zip_file: Any, map_location: object, pickle_module: Any, pickle_file: str = "data.pkl", overall_storage: Any = None,
        **options: object,
    ) -> Any:  # fmt: skip
        if zip_file.has_record(UNKNOWN):
            if simulation.engine.enable_data:
                raise KernbenchError(
                    "this checkpoint was written by a run without data (enable_data=False, --no-data): it has no values. "
                    "Load it in a run without data, or write it by one with data"
                )
            zip_file, overall_storage = _Reader(zip_file, json.loads(zip_file.get_record(UNKNOWN)), made), None
        return load(zip_file, map_location, pickle_module, pickle_file, overall_storage, **options)

    patches.set(serialization, "_save", saving)
    patches.set(serialization, "_load", loading)
