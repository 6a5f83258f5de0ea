"""Whatever stands in a file, the answer is a description or an explained ConfigError, never another exception."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernbench.errors import ConfigError
from kernbench.topology import Topology, load_system
from kernbench.topology.shipped import config_root

_ROOT = config_root()
_WHOLE: dict[str, Any] = yaml.safe_load((_ROOT / "systems" / "sip8.yaml").read_text())
_WHOLE["system"]["sips"]["device"] = yaml.safe_load((_ROOT / "devices" / "sip.yaml").read_text())["device"]
_WHOLE["system"]["fabric"] = yaml.safe_load((_ROOT / "fabrics" / "ndr400.yaml").read_text())["fabric"]


def _paths(value: Any, at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = (
        [path for key, item in value.items() for path in _paths(item, (*at, key))] if isinstance(value, dict) else []
    )
    return [at, *below] if at else below


_junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["sip", "5 GB/s", "1 us"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(_paths(_WHOLE)), value=_junk)
@example(path=("system", "sips"), value=[])
@example(path=("system", "sips", "count"), value=10**30)
@example(path=("system", "sips", "device", "hbm", "bandwidth"), value="1e999999999 GB/s")
@example(path=("system", "sips", "device", "hbm", "size"), value="9e307 TiB")
@example(path=("system", "sips", "device"), value={"extends": 3})
@example(path=("system", "fabric"), value={"extends": "ndr400", "bandwidth": None})
def test_any_value_anywhere(tmp_path: Path, path: tuple[str, ...], value: Any) -> None:
    data = copy.deepcopy(_WHOLE)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(data))
    try:
        Topology(load_system(file))
    except ConfigError as error:
        assert str(file) in str(error)  # noqa: PT017 - most values fail, some do not


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40) | st.text(alphabet="{}[]:,-&*!?|>'\"%@` \n\tax1<", max_size=30))
def test_any_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load_system(file)
