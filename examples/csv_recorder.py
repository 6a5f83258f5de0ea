"""A plugin that writes what a simulation did to a CSV file: kernels, collectives, host reads, ranks.

    kernbench run --plugin examples/csv_recorder.py --csv ops.csv --nproc-per-node 4 train.py

Rows are in the order of virtual time, so that the file is the same whenever the program is.
"""

import csv

import click

from kernbench.output_files import replacing

COLUMNS = ("what", "name", "ranks", "start_us", "end_us", "nbytes", "detail")


class CsvRecorder:
    """Keeps rows while the simulation runs, and writes them when its timeline is finished."""

    name = "csv"

    def __init__(self):
        self.rows = []

    def kernbench_options(self):
        return [
            click.Option(["--csv"], metavar="FILE", help="Write kernels, collectives and host reads to a CSV file.")
        ]

    def kernbench_context_opened(self):
        self.rows.clear()

    def kernbench_kernel_completed(self, event):
        self.add(event.kind, event.name, (event.rank,), event.start, event.end, event.nbytes, event.error)

    def kernbench_collective_completed(self, event):
        self.add("collective", event.op, event.ranks, event.start, event.end, event.nbytes, event.error or event.group)

    def kernbench_host_read(self, event):
        self.add("host read", event.name, (event.rank,), event.time, event.time, event.nbytes, event.dtype)

    def kernbench_rank_ended(self, event):
        self.add("rank", event.outcome, (event.rank,), event.time, event.time, 0, "")

    def kernbench_rank_failed(self, event):
        self.add("rank", event.outcome, (event.rank,), event.time, event.time, 0, event.error.splitlines()[0])

    def kernbench_timeline_finished(self, ctx):
        if ctx.options["csv"]:
            with replacing(ctx.options["csv"]) as part, part.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(COLUMNS)
                writer.writerows(self.table())

    def add(self, what, name, ranks, start, end, nbytes, detail):
        self.rows.append((what, name, ranks, start or 0.0, end or 0.0, nbytes, detail))

    def table(self):
        for what, name, ranks, start, end, nbytes, detail in sorted(
            self.rows, key=lambda row: (row[3], row[4], str(row))
        ):
            who = "main" if None in ranks else " ".join(map(str, ranks))
            yield what, name, who, f"{start * 1e6:.3f}", f"{end * 1e6:.3f}", nbytes, detail


plugin = CsvRecorder
