"""Sizes of a served model, as a ``config.json`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kernbench.errors import ConfigError
from kernbench.input_files import is_directory, read_json, shortened, shown_path

MOST = 10**9
"""Of what is counted."""

DTYPES = ("bfloat16", "float16", "float32")
"""Of weights and cache."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, by the names of a ``config.json``."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def of(cls, given: Mapping[str, Any], world: int) -> ModelShape:
        """Of a file's content, for ``world`` ranks. Raises ConfigError if the engine has no such model."""
        kind = given.get("model_type")
        if kind not in ("llama", "mistral"):
            raise ConfigError(
                f"model_type {shortened(repr(kind))}: this engine has llama and mistral; --engine vllm others"
            )
        heads, rope = given.get("num_attention_heads"), given.get("rope_parameters") or given
        hidden = given.get("hidden_size")
        each = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
        known = {
            "num_key_value_heads": heads, "head_dim": each, "rms_norm_eps": 1e-5,
            "rope_theta": rope.get("rope_theta", 10000.0) if isinstance(rope, Mapping) else None,
            "max_position_embeddings": 4096, **{name: value for name, value in given.items() if value is not None},
        }  # fmt: skip
        for field in fields(cls):
            _check(field.name, known.get(field.name), whole=field.type == "int")
        shape = cls(**{field.name: known[field.name] for field in fields(cls)})
        for name, size in (
            ("attention heads", shape.num_attention_heads),
            ("vocabulary", shape.vocab_size),
            ("MLP", shape.intermediate_size),
        ):
            if size % world:
                raise ConfigError(
                    f"tensor parallelism over {world}: {size}, the size of its {name}, is not divisible by it"
                )
        keys = shape.num_key_value_heads
        if shape.num_attention_heads % keys or (keys % world and world % keys):
            raise ConfigError(
                f"num_key_value_heads {keys}: expected a divisor of {shape.num_attention_heads}, the attention heads, and a "
                f"divisor or a multiple of {world} ranks"
            )
        if shape.head_dim % 2:
            raise ConfigError(
                f"head_dim {shape.head_dim}: expected an even number, of which rotary embeddings turn pairs"
            )
        return shape


def _check(name: str, value: object, *, whole: bool) -> None:
    expected = f"a whole number above 0 and of at most {MOST:,}" if whole else "a number above 0"
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and 0 < value <= MOST
    if not fits:
        raise ConfigError(f"{name} {'missing' if value is None else shortened(repr(value))}: expected {expected}")


@dataclass(frozen=True)
class ServedModel:
    """What a ``config.json`` says of a model.

    Attributes:
        shape: its sizes.
        dtype: of its weights, a name of torch's.
    """

    shape: ModelShape
    dtype: str

    @classmethod
    def read(cls, path: Path, world: int, dtype: str | None = None) -> ServedModel:
        """Read the file, or that of a folder; ``dtype`` instead of the file's. Raises ConfigError that names it."""
        file = path / "config.json" if is_directory(path) else path
        given = read_json(file)
        if not isinstance(given, dict):
            raise ConfigError(f"{shown_path(file)}: expected an object, a model's config.json")
        try:
            shape = ModelShape.of(given, world)
        except ConfigError as error:
            raise ConfigError(f"{shown_path(file)}: {error}") from None
        chosen = dtype or given.get("dtype") or given.get("torch_dtype") or "bfloat16"
        if chosen not in DTYPES:
            raise ConfigError(f"dtype {shortened(repr(chosen))}: expected one of {', '.join(DTYPES)}")
        return cls(shape, chosen)
