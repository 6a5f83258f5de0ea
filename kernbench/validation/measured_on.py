"""The system or device that a table was measured on."""

from __future__ import annotations

from pathlib import Path

from kernbench.cost.collective_world import resolve_system
from kernbench.cost.devices import resolve_device
from kernbench.input_files import is_file
from kernbench.topology import load_fabric
from kernbench.topology.device import DeviceSpec
from kernbench.topology.system import SystemSpec
from kernbench.validation.manifests import Table


def table_system(table: Table, beside: Path) -> SystemSpec:
    """The system of a table, joined by the table's fabric."""
    assert table.system is not None
    system = resolve_system(_beside(table.system, beside))
    return system if table.fabric is None else system.joined_by(load_fabric(_beside(table.fabric, beside)))


def table_device(table: Table, beside: Path) -> DeviceSpec:
    """The device of a kernel's table, or of its system."""
    if table.device is not None:
        return resolve_device(_beside(table.device, beside))
    return table_system(table, beside).device


def _beside(name: str, directory: Path) -> str:
    """A path of a manifest counts from the manifest."""
    path = directory / name
    return str(path) if name.endswith((".yaml", ".yml")) and is_file(path) else name
