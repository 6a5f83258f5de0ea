"""``ccl.yaml``: which algorithm a collective uses, and the parameters of its queues.

The shipped file holds the defaults. A system's description may change them for its own queues, and a ``ccl.yaml`` in the
working directory overrides both, key by key. Within the result,
``algorithms.<name>`` overrides ``defaults``.

``defaults.algorithm`` names the entry that all-reduce uses, ``collectives`` that of any collective. ``auto`` instead of an
entry leaves the choice to what the vendor's library would do (:mod:`kernbench.ccl.selection`); as ``defaults.algorithm`` it
does so for every collective.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from kernbench.collective_kinds import COLLECTIVES
from kernbench.errors import ConfigError
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.topology import SystemSpec
from kernbench.topology.document import SAFE_LOADER
from kernbench.topology.shipped import config_root

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
                f"{self.path}: no algorithm {wanted!r}{_did_you_mean(wanted, self.algorithms)}; "
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
        if name in shipped.document.get("algorithms", {}):
            raise ConfigError(f"{owner} brings an algorithm {name!r}, but a shipped one is called so: rename it")
        layers.append(_layer(f"{owner}: algorithm {name}", {"algorithms": {name: dict(entry)}}))
    if system is not None and system.ccl:
        layers.append(_layer(f"system {system.name}: ccl", {"defaults": dict(system.ccl)}))
    own = Path(path) if path is not None else Path(FILE_NAME)
    if path is not None and not own.is_file():
        raise ConfigError(f"{own}: no such file")
    if own.is_file() and own.resolve() != Path(shipped.source).resolve():
        layers.append(_file(own))
    return _merged(tuple(layers))


@dataclass(frozen=True)
class _Layer:
    """One of the documents that are laid over each other.

    Attributes:
        source: where it comes from, for complaints.
        text: all that it says, by which layers are compared.
    """

    source: str
    text: str
    document: Mapping[str, Any] = field(compare=False)


def _file(path: Path) -> _Layer:
    text = path.read_text()
    return _Layer(str(path), text, _parse(path, text))


def _layer(source: str, document: Mapping[str, Any]) -> _Layer:
    return _Layer(source, repr(document), document)


@functools.lru_cache(maxsize=16)
def _merged(layers: tuple[_Layer, ...]) -> CclConfig:
    """The configuration that the layers make, the last one on top. Simulations of one process share it."""
    source = layers[-1].source
    problems: list[str] = []
    defaults: dict[str, Any] = {}
    used: dict[str, str] = {}
    fidelity = "auto"
    entries: dict[str, dict[str, Any]] = {}
    for file, document in ((layer.source, layer.document) for layer in layers):
        for key in document:
            if key not in SECTIONS:
                problems.append(f"{file}: {key}: unknown key; expected one of {', '.join(SECTIONS)}")
        fidelity = document.get("fidelity", fidelity)
        given = _section(file, document, "defaults", problems)
        defaults |= given
        if given.get("algorithm") == AUTO:
            used = dict.fromkeys(COLLECTIVES, AUTO)
        elif "algorithm" in given:
            used["all_reduce"] = str(given["algorithm"])
        for collective, name in _section(file, document, "collectives", problems).items():
            if collective not in COLLECTIVES:
                problems.append(
                    f"{file}: collectives.{collective}: unknown collective{_did_you_mean(str(collective), COLLECTIVES)}; "
                    f"expected one of {', '.join(COLLECTIVES)}"
                )
            used[str(collective)] = str(name)
        for name, entry in _section(file, document, "algorithms", problems).items():
            if not isinstance(entry, Mapping):
                problems.append(f"{file}: algorithms.{name}: expected a mapping of keys, found {entry!r}")
                continue
            entries.setdefault(str(name), {}).update(entry)

    defaults.pop("algorithm", None)
    if AUTO in entries:
        problems.append(f"{source}: algorithms.{AUTO}: this name stands for the library's choice; give it another")
    entries.setdefault(AUTO, {"module": "kernbench.ccl.algorithms.ring_allreduce"})
    algorithms: dict[str, AlgorithmConfig] = {}
    for name, entry in entries.items():
        merged = {**defaults, **{key: value for key, value in entry.items() if key != "algorithm"}, "name": name}
        try:
            algorithms[name] = AlgorithmConfig(**merged)
        except ValidationError as error:
            for item in error.errors():
                key = ".".join(map(str, item["loc"]))
                its_own = key in entry or item["type"] == "missing"
                where = f"algorithms.{name}.{key}" if its_own else f"defaults.{key}"
                text = item["msg"]
                if item["type"] == "extra_forbidden":
                    text = f"unknown key{_did_you_mean(key, KEYS)}; expected one of {', '.join(KEYS)}"
                elif item["type"] != "missing":
                    text = f"{text}, found {item['input']!r}"
                problems.append(f"{source}: {where}: {text}")
    for collective, name in used.items():
        if name not in entries:
            key = "defaults.algorithm" if collective == "all_reduce" else f"collectives.{collective}"
            problems.append(f"{source}: {key}: no entry {name!r} under `algorithms`{_did_you_mean(name, entries)}")
    if fidelity not in get_args(Fidelity):
        problems.append(f"{source}: fidelity: expected one of {', '.join(get_args(Fidelity))}, found {fidelity!r}")
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return CclConfig(
        path=source, algorithm=used.pop("all_reduce"), algorithms=algorithms, collectives=used, fidelity=fidelity
    )


def _did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@functools.lru_cache(maxsize=64)
def _parse(path: Path, text: str) -> Mapping[str, Any]:
    """What ``text`` of ``path`` says, to be read only; simulations of one process share it."""
    try:
        document = yaml.load(text, Loader=SAFE_LOADER)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path}: expected a mapping with `defaults` and `algorithms`, found {type(document).__name__}"
        )
    return document


def _section(path: str | Path, document: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    section = document.get(name)
    if section is None:
        return {}
    if not isinstance(section, dict):
        problems.append(f"{path}: {name}: expected a mapping, found {section!r}")
        return {}
    return dict(section)
