"""``nvidia-smi`` for simulated GPUs: what the program prints of what its environment says."""

from __future__ import annotations

import os
import subprocess

import pytest

from kernbench.driver_tools import nvidia_smi

GPUS = [
    {
        "index": number, "name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{number}", "bus": 27 + number,
        "bus_id": f"00000000:{27 + number:02X}:00.0", "capability": [9, 0], "total": 80998 << 20, "pes": 132, "clock": 1.83e9,
        "power": 700.0 if number else 0.0, "used": {} if number else {4711: 5 << 30},
    }
    for number in range(2)
]  # fmt: skip


def ask(*arguments: str, told: bool = True) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": nvidia_smi.on_path(os.environ["PATH"])}
    if told:
        environ |= nvidia_smi.variables(GPUS, "580.1", (13, 0))
    return subprocess.run(["nvidia-smi", *arguments], env=environ, capture_output=True, text=True, check=False)


def test_a_query_as_csv():
    fields = "index,gpu_name,memory.used,memory.free,power.limit,compute_cap,temperature.gpu,driver_version,count"
    done = ask(f"--query-gpu={fields}", "--format=csv")
    assert done.returncode == 0
    header, first, second = done.stdout.splitlines()
    assert header.startswith("index, gpu_name, memory.used [MiB], memory.free [MiB], power.limit [W]")
    assert first == "0, NVIDIA H100 80GB HBM3, 5120 MiB, 75878 MiB, [N/A], 9.0, [N/A], 580.1, 2"
    assert second == "1, NVIDIA H100 80GB HBM3, 0 MiB, 80998 MiB, 700.00 W, 9.0, [N/A], 580.1, 2"


def test_numbers_alone_of_one_gpu():
    assert ask("--query-gpu", "memory.free", "--format", "csv,noheader,nounits", "-i", "1").stdout == "80998\n"


def test_processes():
    done = ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert done.stdout == "4711, 5120 MiB\n"


def test_the_list_and_the_table():
    assert ask("-L").stdout.splitlines()[1] == "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"
    table = ask().stdout
    assert "5120MiB / 80998MiB" in table
    assert "(simulated)" in table
    assert len({len(line) for line in table.splitlines() if line}) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topo", "-m"], "has no topo"),
        (["--query-gpu=name"], '"--format=" switch is missing'),
        (["--query-gpu=name", "--format=csv", "-i", "7"], "No devices were found"),
        (["--query-gpu=name", "--format"], "missing its value"),
    ],
)
def test_what_it_refuses(arguments, said):
    done = ask(*arguments)
    assert done.returncode == 2
    assert said in done.stdout


def test_an_environment_that_says_nothing():
    done = ask("-L", told=False)
    assert done.returncode == 9
    assert "KERNBENCH_SMI is not set" in done.stderr
