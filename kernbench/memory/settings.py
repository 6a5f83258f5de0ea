"""Settings of the caching allocator: what ``PYTORCH_ALLOC_CONF`` says.

Source: torch/c10/core/AllocatorConfig and the section "Memory management" of PyTorch's notes on CUDA semantics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernbench.errors import ConfigError
from kernbench.input_files import shortened, whole_number

MIB = 1 << 20
SMALL_SEGMENT = 2 * MIB
"""Bytes of a segment that requests up to 1 MiB share."""
LARGE_SEGMENT = 20 * MIB
"""Bytes of a segment that requests between 1 and 10 MiB share."""

_INTERVALS = 16
"""Powers of two, from 1 MiB to 64 GiB, that may have divisions of their own."""

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables that have the settings; the first that is set counts."""

_WITHOUT_EFFECT = frozenset({
    "pinned_use_cuda_host_register", "pinned_num_register_threads", "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
})  # fmt: skip
"""Settings of torch's that change nothing here: of host memory, of locks, of CUDA graphs."""

_ITEM = re.compile(r"\s*([A-Za-z_0-9]+)\s*:\s*(\[[^\]]*\]|[^,\[\]]*)\s*(?:,|$)")


@dataclass(frozen=True)
class AllocatorSettings:
    """How an allocator behaves.

    Attributes:
        max_split_size: free blocks of at least this many bytes are not split; None: all may be.
        max_non_split_rounding: such a block serves requests that are smaller by less than this many bytes.
        expandable_segments: segments grow, page by page, instead of being made for one request each.
        garbage_collection_threshold: share of the allowed memory above which cached blocks that have long not been used are
            given back before more is asked for; 0: never.
        roundup_power2_divisions: into how many parts the space between two powers of two is divided, whose bounds sizes are
            rounded up to; one number per power from 1 MiB on, 0: sizes are rounded up to 512 bytes.
        fraction: share of the device's memory that may be reserved; None: all.
        text: what was given.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    expandable_segments: bool = False
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = ()
    fraction: float | None = None
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read ``key:value,key:value``. Raises :class:`ConfigError` naming what is wrong."""
        given: dict[str, object] = {}
        at = 0
        while at < len(text):
            item = _ITEM.match(text, at)
            if item is None:
                raise ConfigError(f"allocator settings {text!r}: expected key:value,key:value at {text[at:]!r}")
            key, value, at = item[1], item[2].strip(), item.end()
            if key == "backend":
                if value != "native":
                    raise ConfigError(f"allocator settings: backend {value!r} is not modelled; expected native")
            elif key in _READERS:
                name, read = _READERS[key]
                given[name] = read(key, value)
            elif key not in _WITHOUT_EFFECT:
                known = ", ".join(sorted({*_READERS, *_WITHOUT_EFFECT, "backend"}))
                raise ConfigError(f"allocator settings: unrecognized key {key!r}; expected one of {known}")
        return cls(**given, text=text)  # type: ignore[arg-type]

    @classmethod
    def of_environment(cls, variables: Mapping[str, str]) -> AllocatorSettings:
        """The settings that a process with these environment variables has."""
        return cls.parse(next((variables[name] for name in VARIABLES if variables.get(name)), ""))

    def rounded(self, nbytes: int) -> int:
        """The size of the block that a request for ``nbytes`` gets."""
        divisions = self.roundup_power2_divisions
        if divisions:
            parts = divisions[min(max(nbytes.bit_length() - 21, 0), _INTERVALS - 1)]
            if parts > 1 and nbytes > 512 * parts:
                return _next_division(nbytes, parts)
        return max(512, (nbytes + 511) & -512)


def _next_division(nbytes: int, parts: int) -> int:
    floor = 1 << (nbytes.bit_length() - 1)
    if floor == nbytes:
        return nbytes
    step = floor >> (parts.bit_length() - 1)
    return -(-nbytes // step) * step if step else floor << 1


def _wrong(key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(f"allocator settings: {shortened(key)}:{shortened(value)}: expected {expected}")


def _megabytes(key: str, value: str) -> int:
    number = whole_number(value)
    if number is None or number * MIB < LARGE_SEGMENT:
        raise _wrong(key, value, f"a number of MiB, at least {LARGE_SEGMENT // MIB}")
    return number * MIB


def _share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0.0 < share < 1.0 and not (key == "per_process_memory_fraction" and share in (0.0, 1.0)):
        raise _wrong(key, value, "a number between 0 and 1")
    return share


def _switch(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _wrong(key, value, "True or False")
    return value == "True"


def _power_of_two(key: str, text: str, given: str) -> int:
    number = whole_number(text)
    if number is None or number & (number - 1):
        raise _wrong(key, given, "powers of two")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """``4``, or ``[256:1,512:2,>:4]``: up to 256 MiB 1, up to 512 MiB 2, above 4."""
    if not value.startswith("["):
        return (_power_of_two(key, value, value),) * _INTERVALS
    found = [0] * _INTERVALS
    last = 0
    for number, item in enumerate(value.strip("[]").split(",")):
        bound, _, parts = (each.strip() for each in item.partition(":"))
        count = _power_of_two(key, parts, value)
        if bound == ">":
            found[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        index = min(max(_power_of_two(key, bound, value).bit_length() - 1, 0), _INTERVALS - 1)
        if number == 0:
            found[:index] = [count] * index
        found[index] = count
        last = index
    return tuple(found)


_READERS = {
    "max_split_size_mb": ("max_split_size", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _megabytes),
    "expandable_segments": ("expandable_segments", _switch),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "per_process_memory_fraction": ("fraction", _share),
}
"""Keys: which attribute they set, and how their value is read."""
