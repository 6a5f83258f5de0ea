"""``ccl.yaml``: which algorithm a collective uses, and the parameters of its queues.

The shipped file holds the defaults. A system's description may change them for its own queues, and a ``ccl.yaml`` in the
working directory overrides both, key by key. Within the result,
``algorithms.<name>`` overrides ``defaults``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from kernbench.errors import ConfigError
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.topology import SystemSpec
from kernbench.topology.shipped import config_root

FILE_NAME = "ccl.yaml"


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


KEYS = tuple(name for name in AlgorithmConfig.model_fields if name != "name")


class CclConfig(BaseModel):
    """A whole ``ccl.yaml``, merged with the shipped one."""

    model_config = ConfigDict(frozen=True)

    path: str
    algorithm: str
    algorithms: dict[str, AlgorithmConfig]

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
        """Ranks when nobody says: the algorithm's ``world_size``, else the defaults', else the number of SIPs."""
        return self.select(algorithm).world_size or sip_count


def load_ccl_config(
    path: str | Path | None = None, *, system: SystemSpec | None = None, plugins: PluginManager | None = None
) -> CclConfig:
    """Read the shipped ``ccl.yaml`` and what overrides it: ``path``, or ``ccl.yaml`` in the working directory.

    Between the two stands what ``system`` says about its own queues (``system.ccl`` of its description). Algorithms of other
    distributions and of ``plugins`` (default: those installed) are there beside the shipped ones.

    Raises :class:`ConfigError` that lists every problem with file, key path and what was expected.
    """
    shipped = config_root() / FILE_NAME
    layers: list[tuple[str | Path, dict[str, Any]]] = [(shipped, _read(shipped))]
    for name, (entry, owner) in (default_manager() if plugins is None else plugins).algorithms().items():
        if name in layers[0][1].get("algorithms", {}):
            raise ConfigError(f"{owner} brings an algorithm {name!r}, but a shipped one is called so: rename it")
        layers.append((f"{owner}: algorithm {name}", {"algorithms": {name: dict(entry)}}))
    if system is not None and system.ccl:
        layers.append((f"system {system.name}: ccl", {"defaults": dict(system.ccl)}))
    own = Path(path) if path is not None else Path(FILE_NAME)
    if path is not None and not own.is_file():
        raise ConfigError(f"{own}: no such file")
    if own.is_file() and own.resolve() != shipped.resolve():
        layers.append((own, _read(own)))
    source = str(layers[-1][0])

    problems: list[str] = []
    defaults: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {}
    for file, document in layers:
        for key in document:
            if key not in ("defaults", "algorithms"):
                problems.append(f"{file}: {key}: unknown key; expected `defaults` and `algorithms`")
        defaults |= _section(file, document, "defaults", problems)
        for name, entry in _section(file, document, "algorithms", problems).items():
            if not isinstance(entry, Mapping):
                problems.append(f"{file}: algorithms.{name}: expected a mapping of keys, found {entry!r}")
                continue
            entries.setdefault(str(name), {}).update(entry)

    algorithm = defaults.pop("algorithm", None)
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
    if algorithm is not None and algorithm not in entries:
        problems.append(f"{source}: defaults.algorithm: no entry {algorithm!r} under `algorithms`")
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return CclConfig(path=source, algorithm=str(algorithm or next(iter(entries))), algorithms=algorithms)


def _did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
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
