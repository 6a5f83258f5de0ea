"""Streams of distributed checkpoints, in which bytes can be left out (see ``checkpoint_files``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.checkpoint.filesystem"

RELIES_ON = (
    Reliance(
        f"{MODULE}._StorageWriterTransforms.transform_save_stream", "the stream that a tensor is saved to",
        looked_up_by=(f"{MODULE}._write_item",), parameters=("self", "write_item", "raw_stream"),
    ),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """The wrapper around a file seeks where its file does."""
    stock = module._StorageWriterTransforms.transform_save_stream

    def transform_save_stream(self: object, write_item: Any, raw_stream: Any) -> Any:
        stream, descriptors = stock(self, write_item, raw_stream)
        if not descriptors and stream is not raw_stream:
            stream.seek = raw_stream.seek
        return stream, descriptors

    patches.set(module._StorageWriterTransforms, "transform_save_stream", transform_save_stream)
