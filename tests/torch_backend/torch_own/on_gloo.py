"""One test on eight forked gloo processes. With the gates open, ``cuda`` means the CPU in them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.torch_backend.torch_own.suite import ERROR_CODE, FAILED, WORLD, Suite

PATIENCE = 60.0
"""Seconds after which a test is said to hang."""


def run_test(suite: Suite, name: str) -> str:
    """Its outcome."""
    with tempfile.TemporaryDirectory() as directory:
        return _outcome_of(suite, name, directory)


def _outcome_of(suite: Suite, name: str, directory: str) -> str:
    for barrier in Path(suite.variables["TEMP_DIR"], "barrier").iterdir():
        barrier.unlink()
    for left in Path(suite.variables["TEMP_DIR"], "test_dir").iterdir():
        left.unlink()
    suite.module.Barrier.barrier_id = 0
    children = [_fork(suite, rank, name, directory) for rank in range(WORLD)]
    deadline = time.monotonic() + PATIENCE
    codes: dict[int, int] = {}
    while len(codes) < WORLD and time.monotonic() < deadline:
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
        if any(code not in (0, *suite.reasons) for code in codes.values()):
            deadline = min(deadline, time.monotonic() + 5)
        time.sleep(0.005)
    for child in set(children) - set(codes):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    texts = [path.read_text() for path in sorted(Path(directory).glob("error*"))]
    text = texts[0] if texts else f"exit codes {sorted(set(codes.values()))}, {WORLD - len(codes)} hang"
    if len(codes) < WORLD:
        return f"{FAILED}: {text}"
    return suite.outcome(set(codes.values()), text)


def _fork(suite: Suite, rank: int, name: str, directory: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        log = os.open(os.path.join(directory, f"log{rank}"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if suite.opened:
            _cuda_means_cpu(rank)
        torch.set_num_threads(1)  # eight processes share the cores
        suite.run(rank, name, f"{directory}/rendezvous")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException as error:
        code = ERROR_CODE
        Path(directory, f"error{rank}").write_text(
            "".join(traceback.format_exception(error)[-2:]).replace("\n", " ")[-400:]
        )
    os._exit(code)


def _cuda_means_cpu(rank: int) -> None:
    """``cuda`` tensors and modules are CPU ones; the process says that it has eight GPUs."""
    cpu = torch.device("cpu")

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return cpu
        return "cpu" if isinstance(value, str) and value.startswith("cuda") else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
                return args[0]
            if "device" in kwargs:
                kwargs["device"] = cpu if type(kwargs["device"]) is int else moved(kwargs["device"])
            return func(*(moved(value) for value in args), **kwargs)

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: WORLD
    cuda.current_device = lambda: rank
    cuda.set_device = cuda.synchronize = cuda.empty_cache = lambda device=None: None
    cuda.manual_seed = cuda.manual_seed_all = lambda seed: None
    nn: Any = torch._C._nn
    stock_parse = nn._parse_to

    def parse(*args: Any, **kwargs: Any) -> Any:
        return stock_parse(*("cpu" if type(value) is int else moved(value) for value in args), **kwargs)

    nn._parse_to = parse
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    stock = ddp.__init__

    def init(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        stock(self, module, None, None, *args, **kwargs)

    ddp.__init__ = init
    OnCpu().__enter__()
