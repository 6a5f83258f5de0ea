"""A distribution that extends kernbench in every way there is, as its author would write it. Made by a test in a folder.

Its build backend is in the tree (PEP 517, ``backend-path``), so that pip needs neither a network nor a build tool.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

FILES = {
    "pyproject.toml": """
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]

        [project]
        name = "acme-kernbench"
        version = "1.2"
    """,
    "backend.py": '''
        """Builds the wheel: the files of src, and a dist-info."""
        import pathlib
        import zipfile

        ENTRY_POINTS = """
        [kernbench]
        acme = acme_kernbench.observer:Observer

        [kernbench.systems]
        acme_pair = acme_kernbench.systems

        [kernbench.algorithms]
        acme_exchange = acme_kernbench.exchange

        [kernbench.benches]
        acme_bench = acme_kernbench.bench
        """

        def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
            info = "acme_kernbench-1.2.dist-info"
            files = {path.relative_to("src").as_posix(): path.read_text() for path in sorted(pathlib.Path("src").rglob("*.*"))}
            files[f"{info}/METADATA"] = "Metadata-Version: 2.1\\nName: acme-kernbench\\nVersion: 1.2\\n"
            files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: acme\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
            files[f"{info}/entry_points.txt"] = "\\n".join(line.strip() for line in ENTRY_POINTS.splitlines())
            files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
            wheel = "acme_kernbench-1.2-py3-none-any.whl"
            with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w") as archive:
                for name, text in files.items():
                    archive.writestr(name, text)
            return wheel
    ''',
    "src/acme_kernbench/__init__.py": "",
    "src/acme_kernbench/observer.py": """
        class Observer:
            def kernbench_collective_completed(self, event):
                print("acme saw", event.op, "by", event.algorithm)
    """,
    "src/kernbench/plugins/acme_part.py": """
        def kernbench_timeline_finished(event):
            print("acme's part of kernbench.plugins saw", event.collectives, "collective")
    """,
    "src/acme_kernbench/systems/__init__.py": "",
    "src/acme_kernbench/systems/acme_pair.yaml": """
        system:
          name: acme_pair
          sips: {count: 2, device: sip, topology: ring_1d, link: {bandwidth: 1 GB/s, latency: 1 us}}
    """,
    "src/acme_kernbench/exchange.py": '''
        import numpy as np
        from kernbench.ccl.schedule import ScheduleBuilder

        COLLECTIVE = "all_reduce"
        TOPOLOGIES = ("all_to_all",)


        def build(members):
            """Two members send to each other."""
            exchange = ScheduleBuilder("exchange", members, chunks=1)
            member = np.arange(members)
            exchange.round(member, member[::-1], 0, reduce=True)
            return exchange.build()
    ''',
    "src/acme_kernbench/bench.py": '''
        """Acme's own bench."""


        def run(ctx):
            def worker(rank):
                x = ctx.full((3,), rank + 1.0)
                ctx.distributed.all_reduce(x)
                assert x.tolist() == [3.0] * 3

            ctx.multiprocessing.spawn(worker, nprocs=2)
            return f"{ctx.topology.system.name}: {ctx.now() * 1e6:.2f} us"
    ''',
}


def write(folder: Path) -> Path:
    """Write the distribution's source tree into ``folder``."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
    return folder
