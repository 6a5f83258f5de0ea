"""From the text of a module to the address of its function, by llvmlite, with a cache of object files on disk.

A file's name is a digest of the text, of llvmlite's and LLVM's version, and of the processor and its features; its content
begins with a digest of the rest. It is written beside its place and moved there, so that processes may share a folder; one
that does not read as it should is compiled again. ``KERNBENCH_TRITON_NATIVE_CACHE`` names the folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernbench.own_files import cache_folder

CACHE = "KERNBENCH_TRITON_NATIVE_CACHE"
_DIGEST = 32
#: What the processor must have, by its name: the conversion of 16-bit floats.
_NEEDED = {"x86_64": "+f16c", "AMD64": "+f16c", "aarch64": "", "arm64": ""}
_lock = threading.Lock()

Function = Callable[[int], None]


class _Llvm:
    """LLVM, started: the target, and the engine that holds all code."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        for start in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
            try:
                getattr(binding, start)()
            except (AttributeError, RuntimeError):  # newer ones start by themselves
                if start != "initialize":
                    raise
        self.cpu = binding.get_host_cpu_name()
        self.features = binding.get_host_cpu_features().flatten()
        self.target = binding.Target.from_default_triple()
        self.machine = self._machine()
        self.engine = binding.create_mcjit_compiler(binding.parse_assembly(""), self._machine())
        self.version = f"{binding.__name__} {sys.modules['llvmlite'].__version__} {binding.llvm_version_info}"

    def _machine(self) -> Any:
        return self.target.create_target_machine(
            cpu=self.cpu, features=self.features, opt=2, reloc="default", codemodel="jitdefault", jit=True
        )

    def compile(self, text: str) -> bytes:
        """The object file of a module."""
        module = self.binding.parse_assembly(text)
        module.triple = self.target.triple
        module.data_layout = str(self.machine.target_data)
        module.verify()
        options = self.binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = True
        passes = self.binding.create_pass_builder(self.machine, options)
        passes.getModulePassManager().run(module, passes)
        return bytes(self.machine.emit_object(module))

    def load(self, name: str, code: bytes) -> Function:
        """The function of an object file."""
        self.engine.add_object_file(self.binding.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        address = self.engine.get_function_address(name)
        # PyDLL's kind of function keeps the interpreter's lock: nothing else of this process may look at the tensors meanwhile.
        return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)


@lru_cache(1)
def _llvm() -> _Llvm | None:
    if sys.byteorder != "little" or platform.machine() not in _NEEDED:
        return None
    try:
        import llvmlite.binding as binding
    except ImportError:
        return None
    if not hasattr(binding, "create_pass_builder"):
        return None
    llvm = _Llvm(binding)
    return llvm if _NEEDED[platform.machine()] in llvm.features else None


def available() -> bool:
    """Whether native code can be made here: llvmlite is installed, and the processor is one that is known to give the bits."""
    with _lock:
        return _llvm() is not None


def folder() -> Path:
    """Where object files are kept."""
    chosen = os.environ.get(CACHE)
    return Path(chosen) if chosen else cache_folder() / "native"


@lru_cache(4096)
def compiled(text: str) -> Function:
    """The function of a module whose function is called ``NAME``; from the cache, if it is there."""
    with _lock:
        llvm = _llvm()
        assert llvm is not None
        key = hashlib.sha256("\0".join([llvm.version, llvm.cpu, llvm.features, text]).encode()).hexdigest()[:40]
        name = f"kernbench_{key}"
        path = folder() / f"{key}.o"
        code = _kept(path)
        if code is None:
            code = llvm.compile(text.replace("@NAME(", f"@{name}("))
            _keep(path, code)
        return llvm.load(name, code)


def _kept(path: Path) -> bytes | None:
    """The code in a file that this user has written: it is run, and the folder may be one that others can write to."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            content = file.read()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(path: Path, code: bytes) -> None:
    """Write a file that others may be writing or reading. Where that is not possible, every process compiles."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(beside, path)
        except OSError:
            Path(beside).unlink(missing_ok=True)
    except OSError:
        return
