"""Attributes and constants of printed TTIR -> Python numbers, strings, lists and arrays."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import torch

from .brackets import STRING, balanced, split_list
from .types import Ty

_ATTR_OPEN = re.compile(r"<?\{")
_FLOAT_BITS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def take_attrs(text: str) -> tuple[str, dict[str, object]]:
    """Cut the ``{...}`` or ``<{...}>`` dictionaries out of a line."""
    attrs: dict[str, Any] = {}
    at = 0
    while match := _ATTR_OPEN.search(text, at):
        inside_string = any(s.start() < match.start() < s.end() for s in STRING.finditer(text))
        if inside_string:
            at = match.end()
            continue
        brace = match.end() - 1
        end = balanced(text, brace, "{", "}")
        for part in split_list(text[brace + 1 : end - 1]):
            key, _, value = part.partition("=")
            attrs[key.strip()] = _attr_value(value.strip())
        if match[0].startswith("<") and text[end : end + 1] == ">":
            end += 1
        text = text[: match.start()] + " " + text[end:]
        at = match.start()
    return text.strip(), attrs


def _attr_value(text: str) -> object:
    if text in ("", "true", "unit"):
        return True
    if text == "false":
        return False
    if text.startswith('"'):
        return text[1 : text.rindex('"')]
    if text.startswith("array<"):
        body = text[6:-1].partition(":")[2]
        return [
            True if v.strip() == "true" else False if v.strip() == "false" else int(v)
            for v in body.split(",")
            if v.strip()
        ]
    if match := re.match(r"^(-?\d+)(?: : \w+)?$", text):
        return int(match[1])
    return text


def decode_constant(text: str, ty: Ty) -> object:
    """The value of an ``arith.constant``: a number, or an array where a tile's elements differ."""
    if not text.startswith("dense<"):
        return decode_number(text, ty.elem)
    inner = text[6:-1]
    if inner.startswith('"0x'):
        data = bytes.fromhex(inner[3:-1])
        return torch.frombuffer(bytearray(data), dtype=ty.dtype).reshape(ty.shape)
    if inner.startswith("["):
        return np.array([decode_number(v, ty.elem) for v in re.findall(r"[^\[\],\s]+", inner)]).reshape(ty.shape)
    return decode_number(inner, ty.elem)


def decode_number(text: str, elem: str) -> int | float | bool:
    """An MLIR number; hexadecimal floats are bit patterns (``0xFF800000`` is -inf in f32)."""
    if text in ("true", "false"):
        return text == "true"
    if not elem.startswith(("f", "bf")):
        return int(text, 0)
    if not text.startswith(("0x", "-0x")):
        return float(text)
    bits = int(text, 16)
    if elem in _FLOAT_BITS:
        fmt = _FLOAT_BITS[elem]
        value: float = struct.unpack(fmt, bits.to_bytes(struct.calcsize(fmt), "little"))[0]
        return value
    if elem == "bf16":
        return struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
    raw = torch.tensor([bits], dtype=torch.uint8).view(Ty(elem).dtype)
    return float(raw.to(torch.float32).item())
