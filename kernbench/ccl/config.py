"""``ccl.yaml``: which algorithm a collective uses, and the parameters of its queues.

The shipped file holds the defaults. A system's description may change them for its own queues, and a ``ccl.yaml`` in the
working directory overrides both, key by key. Within the result,
``algorithms.<name>`` overrides ``defaults``.

``defaults.algorithm`` names the entry that all-reduce uses, ``collectives`` that of any collective. ``auto`` instead of an
entry leaves the choice to what the vendor's library would do (:mod:`kernbench.ccl.selection`); as ``defaults.algorithm`` it
does so for every collective.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from kernbench.collective_kinds import COLLECTIVES
from kernbench.errors import ConfigError
from kernbench.input_files import is_file, resolved, shown_path
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.suggestions import did_you_mean
from kernbench.topology import SystemSpec
from kernbench.topology.document import Document
from kernbench.topology.problems import MOST_PROBLEMS, Mark, describe, raise_problems
from kernbench.topology.shipped import config_root
from kernbench.topology.yaml_files import shared_document

FILE_NAME = "ccl.yaml"

AUTO = "auto"
"""Instead of an algorithm's name: whichever the vendor's library would take."""

Fidelity = Literal["auto", "stepped", "closed_form"]
"""How a collective's time is found: transfer by transfer, by a formula; ``auto``: the formula in very large worlds."""


class AlgorithmConfig(BaseModel):
    """Everything that ``ccl.yaml`` says about one algorithm. Sizes are bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    module: str = Field(description="Python module that builds the schedule")
    topology: str = Field("ring_1d", description="how the members are joined, as the algorithm sees them")
    buffer_kind: Literal["tcm", "sram", "hbm"] = "tcm"
    backpressure: Literal["sleep", "poll"] = "sleep"
    n_slots: PositiveInt = 4
    slot_size: PositiveInt = 4096
    vc_chunk_size: PositiveInt = 256
    ipcq_credit_size_bytes: PositiveInt = 16
    n_elem: PositiveInt = 8
    world_size: PositiveInt | None = None


SECTIONS = ("defaults", "fidelity", "collectives", "algorithms")
KEYS = tuple(name for name in AlgorithmConfig.model_fields if name != "name")


class CclConfig(BaseModel):
    """A whole ``ccl.yaml``, merged with the shipped one."""

    model_config = ConfigDict(frozen=True)

    path: str
    algorithm: str
    algorithms: dict[str, AlgorithmConfig]
    collectives: dict[str, str] = Field(default={}, description="entry that each collective uses, but all_reduce")
    fidelity: Fidelity = Field("auto", description="time transfer by transfer, or by a formula")

    def algorithm_for(self, collective: str) -> str:
        """Name of the entry that a collective uses, or ``auto``. A barrier is an all-reduce."""
        return self.collectives.get(collective, self.algorithm)

    def select(self, name: str | None = None) -> AlgorithmConfig:
        """The algorithm called ``name``, or the default one. Raises :class:`ConfigError` naming those there are."""
        wanted = self.algorithm if name is None else name
        if wanted not in self.algorithms:
            raise ConfigError(
                f"{shown_path(self.path)}: no algorithm {describe(wanted)}{did_you_mean(wanted, self.algorithms, describe)}; "
                f"`algorithms` has {', '.join(sorted(self.algorithms))}"
            )
        return self.algorithms[wanted]

    def world_size(self, sip_count: int, algorithm: str | None = None) -> int:
        """Ranks if not given: the algorithm's ``world_size``, else the defaults', else the number of SIPs."""
        return self.select(algorithm).world_size or sip_count


def load_ccl_config(
    path: str | Path | None = None, *, system: SystemSpec | None = None, plugins: PluginManager | None = None
) -> CclConfig:
    """Read the shipped ``ccl.yaml`` and what overrides it: ``path``, or ``ccl.yaml`` in the working directory.

    Between the two stands what ``system`` says about its own queues (``system.ccl`` of its description). Algorithms of other
    distributions and of ``plugins`` (default: those installed) are there beside the shipped ones.

    Raises :class:`ConfigError` that lists every problem with file, key path and what was expected.
    """
    shipped = _file(config_root() / FILE_NAME)
    layers = [shipped]
    for name, (entry, owner) in (default_manager() if plugins is None else plugins).algorithms().items():
        if name in shipped.document.data["algorithms"]:
            raise ConfigError(f"{owner} brings an algorithm {name!r}, but a shipped one is called so: rename it")
        layers.append(_layer(f"{owner}: algorithm {name}", {"algorithms": {name: dict(entry)}}))
    if system is not None and system.ccl:
        layers.append(_layer(f"system {system.name}: ccl", {"defaults": dict(system.ccl)}))
    own = Path(path) if path is not None else Path(FILE_NAME)
    if path is not None and not is_file(own):
        raise ConfigError(f"{shown_path(own)}: no such file")
    if is_file(own) and resolved(own) != resolved(shipped.source):
        layers.append(_file(own))
    return _merged(tuple(layers))


@dataclass(frozen=True)
class _Layer:
    """One of the documents that are laid over each other.

    Attributes:
        source: where it comes from, for complaints.
        text: by which layers are compared: all that it says, or of a file which document that is.
    """

    source: str
    text: str
    document: Document = field(compare=False)

    def at(self, *loc: str) -> str:
        """A key's place, for complaints: file, line where it has one, and key path."""
        mark = self.document.mark(loc)
        return f"{shown_path(mark.file)}:{mark.line}: {mark.key}" if mark.line else f"{self.source}: {mark.key}"


def _file(path: Path) -> _Layer:
    document = shared_document(path)
    if not document.is_empty:
        raise_problems(document.problems, title=str(path))
    return _Layer(str(path), f"document {id(document)}", document)  # which is alive as long as the layer is


def _layer(source: str, data: dict[str, Any]) -> _Layer:
    return _Layer(source, repr(data), Document(data, {(): Mark(source, 0, ())}))


@functools.lru_cache(maxsize=16)
def _merged(layers: tuple[_Layer, ...]) -> CclConfig:
    """The configuration that the layers make, the last one on top. Simulations of one process share it."""
    source = layers[-1].source
    problems: list[str] = []
    defaults: dict[str, object] = {}
    used: dict[str, str] = {}
    fidelity: Any = "auto"
    entries: dict[str, dict[str, Any]] = {}
    places: dict[tuple[str, ...], str] = {}  # where each key of the result was given, by its path
    for layer in layers:
        document = layer.document.data
        for key in document:
            if key not in SECTIONS:
                problems.append(f"{layer.at(key)}: unknown key; expected one of {', '.join(SECTIONS)}")
        if "fidelity" in document:
            fidelity, places["fidelity",] = document["fidelity"], layer.at("fidelity")
        given = _section(layer, "defaults", problems)
        defaults |= given
        places |= {("defaults", key): layer.at("defaults", key) for key in given}
        if given.get("algorithm") == AUTO:
            used = dict.fromkeys(COLLECTIVES, AUTO)
        elif "algorithm" in given:
            used["all_reduce"] = _text(given["algorithm"])
        for collective, name in _section(layer, "collectives", problems).items():
            places["collectives", collective] = place = layer.at("collectives", collective)
            if collective not in COLLECTIVES:
                problems.append(
                    f"{place}: unknown collective{did_you_mean(collective, COLLECTIVES, describe)}; "
                    f"expected one of {', '.join(COLLECTIVES)}"
                )
            used[collective] = _text(name)
        for name, entry in _section(layer, "algorithms", problems).items():
            if not isinstance(entry, Mapping):
                problems.append(f"{layer.at('algorithms', name)}: expected a mapping of keys, found {describe(entry)}")
                continue
            entries.setdefault(name, {}).update(entry)
            places |= {("algorithms", name, key): layer.at("algorithms", name, key) for key in entry}
            places["algorithms", name] = layer.at("algorithms", name)

    defaults.pop("algorithm", None)
    if AUTO in entries:
        problems.append(
            f"{places['algorithms', AUTO]}: this name stands for the library's choice; give the entry another"
        )
    entries.setdefault(AUTO, {"module": "kernbench.ccl.algorithms.ring_allreduce"})
    algorithms: dict[str, AlgorithmConfig] = {}
    for name, entry in entries.items():
        merged = {**defaults, **{key: value for key, value in entry.items() if key != "algorithm"}, "name": name}
        try:
            algorithms[name] = AlgorithmConfig(**merged)
        except ValidationError as error:
            problems += [_problem(item, name, places) for item in error.errors(include_url=False)]
    for collective, name in used.items():
        if name not in entries:
            loc = ("defaults", "algorithm") if collective == "all_reduce" else ("collectives", collective)
            problems.append(
                f"{places.get(loc, source)}: no entry {describe(name)} under `algorithms`"
                f"{did_you_mean(name, entries, describe)}"
            )
    if fidelity not in get_args(Fidelity):
        expected = ", ".join(get_args(Fidelity))
        problems.append(f"{places['fidelity',]}: expected one of {expected}, found {describe(fidelity)}")
    if problems := list(dict.fromkeys(problems)):
        more = [f"... and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
        raise ConfigError("\n".join([*problems[:MOST_PROBLEMS], *more]))
    return CclConfig(
        path=source, algorithm=used.pop("all_reduce"), algorithms=algorithms, collectives=used, fidelity=fidelity
    )


def _problem(error: Any, name: str, places: Mapping[tuple[str, ...], str]) -> str:
    """A pydantic error of an algorithm, in the words of the file's author."""
    key = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{places['algorithms', name]}.{key}: {error['msg']}"
    place = places.get(("algorithms", name, key)) or places["defaults", key]
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key{did_you_mean(key, KEYS, describe)}; expected one of {', '.join(KEYS)}"
    return f"{place}: {error['msg']}, found {describe(error['input'])}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else describe(value)


def _section(layer: _Layer, name: str, problems: list[str]) -> dict[str, object]:
    section = layer.document.data.get(name)
    if section is None:
        return {}
    if not isinstance(section, dict):
        problems.append(f"{layer.at(name)}: expected a mapping, found {describe(section)}")
        return {}
    return dict(section)
