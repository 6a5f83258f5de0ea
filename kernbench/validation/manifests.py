"""Manifests of measured tables: what each was measured on, which of its rows and columns count."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kernbench.errors import ConfigError
from kernbench.spec_files import read_spec
from kernbench.topology.dtypes import canonical_dtype
from kernbench.topology.problems import describe
from kernbench.topology.units import SIZE, QuantityError
from kernbench.validation.table_files import TableFile

SHIPPED_MANIFEST = Path(__file__).parent / "data" / "manifest.yaml"
Kind = Literal["collective", "gemm", "sustained_gemm", "grouped_gemm", "attention", "memory_bound"]


_SPELLINGS = {
    **dict.fromkeys(("out_of_place", "outofplace", "oop"), "out"),
    **dict.fromkeys(("in_place", "inplace", "ip"), "in"),
    "collectives": "collective",
    "memory": "memory_bound",
}


class Table(BaseModel):
    """One table of a manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    file: str = Field(description="CSV file or output of nccl-tests, beside the manifest")
    kind: Kind
    name: str = Field(default="", description="how the report calls it; the file's name without one")
    system: str | None = Field(default=None, description="system of a collective: a name or a YAML path")
    device: str | None = Field(default=None, description="device of a kernel: a name or a YAML path")
    nodes: int = Field(default=1, ge=1)
    ranks: int | None = Field(default=None, ge=1)
    collective: str | None = None
    dtype: str | None = None
    time: Literal["host", "kernel"] = "host"
    placement: Literal["out", "in"] = "out"
    min_bytes: float = Field(default=0, ge=0, description='a number, or "64 KiB"')
    fabric: str | None = Field(default=None, description="what joins the nodes, instead of the system's own")
    op: str | None = Field(default=None, description="memory-bound operation, where the table has no column `op`")
    algorithm: str | None = Field(default=None, description="what the run was set to use, e.g. /simple")
    gpus_per_process: int = Field(default=1, ge=1)
    repeats: int = Field(default=100, ge=1, description="runs of each row of sustained products, one after the other")
    issue_us: float = Field(
        default=0, ge=0, description="least time between two products of a group, which a host issues"
    )
    variant: str = Field(default="flash", description="of an attention: whose kernel")
    gradient: bool = Field(default=False, description="of an attention: the gradient alone")
    where: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="rows to take: column and value"
    )
    column: str | None = Field(default=None, description="the measured column, where there are several")
    cold: bool | None = Field(
        default=None, description="caches were cleared before each run, as Triton's do_bench does"
    )
    source: str = Field(default="", description="who measured: tables of one source are held out together")
    note: str = Field(default="", description="for people")
    held_out: bool = Field(default=False, description="not looked at when constants were set")

    @field_validator("kind", "placement", mode="before")
    @classmethod
    def _spelling(cls, value: Any) -> Any:
        plain = str(value).strip().lower().replace("-", "_").replace(" ", "_")
        return _SPELLINGS.get(plain, plain)

    @field_validator("min_bytes", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return SIZE.parse(re.sub(r"(?<=\d)\s*([kKMG])(?:i?B)?$", lambda m: f" {m[1].upper()}iB", value.strip()))
        except QuantityError as error:
            raise ValueError(f"{error}") from None

    @model_validator(mode="after")
    def _subject(self) -> Table:
        if self.kind == "collective" and self.system is None:
            raise ValueError("a collective table needs `system`")
        if self.kind != "collective" and self.device is None and self.system is None:
            raise ValueError(f"a {self.kind} table needs `device`")
        return self

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.name or Path(self.file).stem


class Manifest(BaseModel):
    """A list of tables; what else a file says beside them is for people."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tables: list[Table] = Field(min_length=1)


def read_manifest(path: Path) -> Manifest:
    """The manifest in a YAML file: a mapping with ``tables``, or the list alone. Raises ConfigError."""
    return read_spec(path, Manifest, list_as="tables")


# Measured columns in the order of preference, and how a value and its row become seconds.
_TIME_COLUMNS = (
    "time_us",
    "time_us_median",
    "oop_us",
    "triton_us",
    "nccl_us",
    "rccl_us",
    "time_us_min",
    "time_ms",
    "time_s",
)
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATE_COLUMNS = {"tflops": 1e12, "mamf_tflops": 1e12}
_ELEMENT_RATES = {"gelem_per_s": 1e9}


MEASURED = frozenset((*_TIME_COLUMNS, *_RATE_COLUMNS, *_ELEMENT_RATES, "ip_us", "algbw_GBps", "busbw_GBps"))


def number(row: Mapping[str, str], column: str, path: Path) -> float:
    """The number in a column. Raises ConfigError."""
    if column not in row:
        raise ConfigError(f"table {path} has no column {column!r}; it has {', '.join(row)}")
    try:
        found = float(row[column])
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"table {path}: column {column!r} holds {describe(row[column])}; expected a number")
    return found


def gemm_shape(row: Mapping[str, str], path: Path) -> tuple[int, int, int, int]:
    """M, N, K and batch of a row."""
    best = "best_M" in row
    m, n, k = (int(number(row, f"best_{axis}" if best else axis, path)) for axis in "MNK")
    return m, n, k, int(float(row.get("b") or row.get("batch") or 1))


def seconds_of(
    row: Mapping[str, str],
    path: Path,
    table: Table,
    *,
    flops: float = 0,
    elements: float = 0,
    nbytes: float = 0,
    bus_factor: float = 1,
) -> float:
    """The duration that a row states, in whichever way it does: as a time or as a rate of what it did.

    Raises ConfigError when it states none.
    """
    column = table.column
    in_place = ("ip_us",) if table.placement == "in" else ()
    rates = ("algbw_GBps", "busbw_GBps") if table.kind == "collective" else ()
    for name in (column,) if column else (*in_place, *_TIME_COLUMNS):
        if (
            row.get(name)
            and name not in rates
            and (unit := _TIME_UNITS.get(name.rsplit("_", 1)[-1], 1e-6 if name.startswith("time_us") else 0))
        ):
            return number(row, name, path) * unit
    for name in rates:
        if column in (None, name) and row.get(name) and nbytes and number(row, name, path) > 0:
            factor = bus_factor if name == "busbw_GBps" else 1.0
            return nbytes * factor / (number(row, name, path) * 1e9)
    for name, scale in _RATE_COLUMNS.items():
        if column in (None, name) and row.get(name) and flops:
            return flops / (number(row, name, path) * scale)
    for name, scale in _ELEMENT_RATES.items():
        if column in (None, name) and row.get(name) and elements:
            return elements / (number(row, name, path) * scale)
    raise ConfigError(
        f"table {path}: no measured column {column or ''} among {', '.join(row)}; expected one of "
        f"{', '.join([*_TIME_COLUMNS, *_RATE_COLUMNS, *_ELEMENT_RATES])}"
    )


def select_rows(table: Table, found: TableFile, path: Path) -> Iterator[Mapping[str, str]]:
    """Rows that the table's manifest entry speaks of."""
    rows = found.rows
    for column in table.where:
        if column not in rows[0]:
            raise ConfigError(f"table {path} has no column {column!r} to select by; it has {', '.join(rows[0])}")
    for row in rows:
        if any(row[column] != str(value) for column, value in table.where.items()):
            continue
        if table.ranks and "num_workers" in row and int(row["num_workers"]) != table.ranks:
            continue
        if table.ranks and "devices_per_node" in row and int(row["devices_per_node"]) * table.nodes != table.ranks:
            continue
        if table.dtype and row.get("dtype") and not _same_dtype(row["dtype"], table.dtype):
            continue
        if table.device and row.get("gpu") and not _same_device(row["gpu"], table.device):
            continue
        yield row


# Spellings of the operand types in tables of library kernels.
_OPERANDS = {"f8e4m3fn": "fp8", "f8e5m2": "fp8", "f8e4m3fnuz": "fp8", "f8e5m2fnuz": "fp8", "f32": "tf32"}


def operand_dtype(text: str) -> str:
    """The operand format of ``"bf16"`` or ``"bf16xbf16->f32"``. fp32 operands of a library GEMM run as tf32 there."""
    if "->" not in text:
        return canonical_dtype(text)
    left = text.split("->")[0].split("x")[0]
    return _OPERANDS.get(left) or canonical_dtype(left)


def result_dtype(text: str) -> str | None:
    """The format of the result of ``"bf16xbf16->f32"``; None when the text does not say."""
    _, arrow, right = text.partition("->")
    return (_OPERANDS.get(right) if right.startswith("f8") else canonical_dtype(right)) if arrow else None


def _same_dtype(found: str, wanted: str) -> bool:
    try:
        plain, asked = operand_dtype(found), canonical_dtype(wanted)
        return found == wanted or plain == asked or {plain, asked} == {"tf32", "fp32"}
    except ValueError:
        return False


def _same_device(gpu: str, device: str) -> bool:
    """Whether a table's ``NVIDIA H100 80GB HBM3`` is a manifest's ``h100_sxm``."""
    stem = Path(device).stem.split("_")[0].lower()
    words = gpu.lower().replace("-", " ").replace("_", " ").split()
    return any(word == stem for word in words) if "_" not in stem else False
