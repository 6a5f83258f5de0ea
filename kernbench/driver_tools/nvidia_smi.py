"""``nvidia-smi`` for the simulated GPUs of a rank's node, as processes that a rank starts find it on their path.

A program of its own, of the standard library alone: what it says is in the environment variable :data:`VARIABLE`, as JSON,
which its caller has set. What is not modelled (utilization, temperature, power draw) is ``[N/A]``, as where a driver
does not tell. Options beyond the table, ``-L`` and the queries as CSV are refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

VARIABLE = "KERNBENCH_SMI"
"""The environment variable that lists the GPUs."""

PYTHON = "KERNBENCH_PYTHON"
"""The environment variable that names the Python which runs this."""

MISSING = "[N/A]"
_MIB = 1 << 20

Gpu = Mapping[str, Any]
Field = tuple[Callable[[Gpu], object], str]
"""What a field says of a GPU, and its unit."""


def directory() -> str:
    """The folder that is put on the path."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def on_path(path: str) -> str:
    """A search path with that folder first."""
    mine = directory()
    return os.pathsep.join([mine, *(part for part in path.split(os.pathsep) if part and part != mine)])


def variables(gpus: Iterable[Gpu], driver: str, cuda: Sequence[int]) -> dict[str, str]:
    """Environment variables that say what this program is to say."""
    described = {"driver": driver, "cuda": f"{cuda[0]}.{cuda[1]}", "gpus": list(gpus)}
    return {VARIABLE: json.dumps(described), PYTHON: sys.executable}


def _mib(nbytes: int) -> int:
    return nbytes // _MIB


def _taken(gpu: Gpu) -> int:
    return min(int(gpu["total"]), sum(gpu["used"].values()))


def _clock(gpu: Gpu) -> int:
    return round(gpu["clock"] / 1e6)


def _power(gpu: Gpu) -> object:
    return f"{gpu['power']:.2f}" if gpu["power"] else MISSING


_FIELDS: dict[str, Field] = {
    "index": (lambda gpu: gpu["index"], ""),
    "name": (lambda gpu: gpu["name"], ""),
    "uuid": (lambda gpu: gpu["uuid"], ""),
    "pci.bus_id": (lambda gpu: gpu["bus_id"], ""),
    "pci.domain": (lambda gpu: "0x0000", ""),
    "pci.bus": (lambda gpu: f"0x{gpu['bus']:02X}", ""),
    "pci.device": (lambda gpu: "0x00", ""),
    "compute_cap": (lambda gpu: ".".join(map(str, gpu["capability"])), ""),
    "memory.total": (lambda gpu: _mib(gpu["total"]), "MiB"),
    "memory.used": (lambda gpu: _mib(_taken(gpu)), "MiB"),
    "memory.free": (lambda gpu: _mib(gpu["total"]) - _mib(_taken(gpu)), "MiB"),
    "memory.reserved": (lambda gpu: 0, "MiB"),
    "power.limit": (_power, "W"),
    "power.default_limit": (_power, "W"),
    "power.max_limit": (_power, "W"),
    "clocks.max.sm": (_clock, "MHz"),
    "clocks.max.graphics": (_clock, "MHz"),
    "persistence_mode": (lambda gpu: "Enabled", ""),
    "compute_mode": (lambda gpu: "Default", ""),
    "mig.mode.current": (lambda gpu: "Disabled", ""),
    "display_active": (lambda gpu: "Disabled", ""),
}
_ALSO = {
    "gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.max.gr": "clocks.max.graphics",
}  # fmt: skip
"""Other names of fields."""


class _UsageError(Exception):
    """What is wrong with the options."""


def main(arguments: Sequence[str]) -> int:
    """Do what ``nvidia-smi`` does; its exit code."""
    told = os.environ.get(VARIABLE)
    if told is None:
        print(
            f"kernbench's nvidia-smi: {VARIABLE} is not set, so it is not known which GPUs are simulated: leave the "
            "environment of a rank's subprocess as it is",
            file=sys.stderr,
        )
        return 9
    system = json.loads(told)
    try:
        options = _parsed(arguments)
        gpus = _chosen(system["gpus"], options.get("id"))
        if "list" in options:
            lines = [f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})" for gpu in gpus]
        elif "gpu" in options:
            lines = _csv(options, [dict(gpu, count=len(system["gpus"]), driver=system["driver"]) for gpu in gpus])
        elif "apps" in options:
            lines = _csv(options, [dict(gpu, pid=pid, mine=used) for gpu in gpus for pid, used in gpu["used"].items()])
        else:
            lines = _table(system, gpus)
    except _UsageError as error:
        print(error)
        return 2
    print("\n".join(lines))
    return 0


_QUERIES = {"--query-gpu": "gpu", "--query-compute-apps": "apps"}


def _parsed(arguments: Sequence[str]) -> dict[str, str]:
    """What is asked for. Raises :class:`_UsageError` for what is not served."""
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        if name in ("-L", "--list-gpus"):
            found["list"] = ""
            continue
        if name not in ("-i", "--id", "--format", *_QUERIES):
            raise _UsageError(
                f"kernbench's nvidia-smi has no {name}: it has the table, -L, --query-gpu=FIELDS, "
                "--query-compute-apps=FIELDS, --format=csv[,noheader][,nounits], -i ID"
            )
        if not has_value:
            if not rest:
                raise _UsageError(f"Option {name} is missing its value.")
            value = rest.pop(0)
        found[_QUERIES.get(name, {"-i": "id", "--id": "id"}.get(name, "format"))] = value
    if ("gpu" in found or "apps" in found) and "csv" not in found.get("format", "").split(","):
        raise _UsageError("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
    return found


def _chosen(gpus: Sequence[Gpu], wanted: str | None) -> Sequence[Gpu]:
    if wanted is None:
        return gpus
    found = []
    for each in wanted.split(","):
        mine = [gpu for gpu in gpus if each.strip() in (str(gpu["index"]), gpu["uuid"], gpu["bus_id"])]
        if not mine:
            raise _UsageError("No devices were found")
        found += mine
    return found


def _csv(options: Mapping[str, str], rows: Sequence[Gpu]) -> list[str]:
    names = [name.strip() for name in options.get("gpu", options.get("apps", "")).split(",")]
    known = {
        **_FIELDS,
        "count": (lambda row: row["count"], ""),
        "driver_version": (lambda row: row["driver"], ""),
        **({} if "apps" not in options else {
            "pid": (lambda row: row["pid"], ""),
            "process_name": (lambda row: "python", ""),
            "used_memory": (lambda row: _mib(row["mine"]), "MiB"),
            "used_gpu_memory": (lambda row: _mib(row["mine"]), "MiB"),
        }),
    }  # fmt: skip
    fields = [(name, known.get(_ALSO.get(name, name), (lambda row: MISSING, ""))) for name in names]
    modes = options["format"].split(",")
    units = "nounits" not in modes
    lines = []
    if "noheader" not in modes:
        lines.append(", ".join(name + (f" [{unit}]" if unit else "") for name, (_, unit) in fields))
    for row in rows:
        cells = []
        for _, (read, unit) in fields:
            value = str(read(row))
            cells.append(f"{value} {unit}" if units and unit and value != MISSING else value)
        lines.append(", ".join(cells))
    return lines


def _table(system: Mapping[str, object], gpus: Sequence[Gpu]) -> list[str]:
    wide = 91

    def line(text: str) -> str:
        return f"| {text:<{wide - 4}} |"

    rule = "|" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "|"
    lines = [
        "+" + "-" * (wide - 2) + "+",
        line("NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda}   (simulated)".format_map(system)),
        rule.replace("-|", "-+").replace("|-", "+-"),
        f"| {'GPU  Name':<22}{'Persistence-M':>17} | {'Bus-Id':<15}{'Disp.A':>7} | {'Volatile Uncorr. ECC':>20} |",
        f"| {'Fan  Temp   Perf':<22}{'Pwr:Usage/Cap':>17} | {'Memory-Usage':>22} | {'GPU-Util  Compute M.':>20} |",
        rule.replace("-", "="),
    ]  # fmt: skip
    for gpu in gpus:
        limit = f"{gpu['power']:.0f}W" if gpu["power"] else "N/A"
        memory = f"{_mib(_taken(gpu))}MiB / {_mib(gpu['total'])}MiB"
        lines += [
            f"| {gpu['index']:>3}  {gpu['name']:<26.26}{'On':>8} | {gpu['bus_id']:<16}{'Off':>6} | {'N/A':>20} |",
            f"| {'N/A  N/A    P0':<22}{'N/A / ' + limit:>17} | {memory:>22} | {'N/A      Default':>20} |",
            rule.replace("|", "+"),
        ]
    lines += [
        "",
        "+" + "-" * (wide - 2) + "+",
        line("Processes:"),
        line(f"{'GPU':>4}{'PID':>12}   Type   {'Process name':<40}{'GPU Memory':>18}"),
    ]
    apps = [(gpu["index"], pid, used) for gpu in gpus for pid, used in gpu["used"].items()]
    lines += [line(f"{index:>4}{pid:>12}      C   {'python':<40}{_mib(used):>15}MiB") for index, pid, used in apps]
    if not apps:
        lines.append(line("No running processes found"))
    return [*lines, "+" + "-" * (wide - 2) + "+"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
