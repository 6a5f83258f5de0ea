"""A plugin that shows in the terminal what each rank is doing, while it does it.

    kernbench run --plugin examples/live_ranks.py --nproc-per-node 8 train.py

Where the output is no terminal, the table is printed once, when the simulation ends.
"""

import sys
from time import monotonic  # the host's: inside a rank, time.monotonic is virtual

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

COLOURS = {
    "runs": "green",
    "waits": "yellow",
    "returned": "dim",
    "unwound": "magenta",
    "raised": "red",
    "deadlock": "red",
}


class LiveRanks:
    """A line per rank: state, virtual clock, what it called last, how much it has done."""

    name = "live"

    def __init__(self):
        self.ranks = {}
        self.live = None
        self.drawn = 0.0
        self.interval = 0.1

    def kernbench_options(self):
        return [click.Option(["--live-interval"], type=float, default=0.1, show_default=True,
                             help="Host seconds between two pictures of the ranks.")]  # fmt: skip

    # -- what happens ------------------------------------------------------------------------------------------------

    def kernbench_context_opened(self, ctx):
        self.ranks.clear()
        self.interval = ctx.options["live_interval"]
        console = Console(file=sys.stderr)
        if console.is_terminal:
            self.live = Live(console=console, auto_refresh=False)
            self.live.start()

    def kernbench_rank_started(self, event):
        self.ranks[event.rank] = {"state": "runs", "clock": event.time, "last": "", "kernels": 0, "collectives": 0}
        self.draw()

    def kernbench_kernel_launched(self, event):
        if event.rank is not None:
            self.note(event.rank, event.enqueue, "runs", event.name, "kernels")

    def kernbench_collective_enqueued(self, event):
        (rank,) = event.ranks
        self.note(rank, event.start, "waits", f"{event.op} on {event.group}", "collectives")

    def kernbench_collective_completed(self, event):
        for rank in event.ranks:
            if self.ranks[rank]["state"] == "waits":
                self.note(rank, event.end, "runs")

    def kernbench_host_read(self, event):
        if event.rank is not None:
            self.note(event.rank, event.time, "runs", event.name)

    def kernbench_deadlock_detected(self, event):
        for rank in event.ranks:
            self.note(rank, event.time, "deadlock")

    def kernbench_rank_ended(self, event):
        self.note(event.rank, event.time, event.outcome)

    def kernbench_rank_failed(self, event):
        self.note(event.rank, event.time, event.outcome, event.error.splitlines()[0])

    def kernbench_context_closed(self):
        if self.live is not None:
            self.live.update(self.table(), refresh=True)
            self.live.stop()
            self.live = None
        elif self.ranks:
            Console(file=sys.stderr, width=100).print(self.table())

    # -- showing it --------------------------------------------------------------------------------------------------

    def note(self, rank, clock, state, last=None, counted=None):
        line = self.ranks[rank]
        line["state"] = state
        line["clock"] = max(line["clock"], clock)
        if last is not None:
            line["last"] = last
        if counted is not None:
            line[counted] += 1
        self.draw()

    def draw(self):
        if self.live is not None and monotonic() - self.drawn > self.interval:
            self.live.update(self.table(), refresh=True)
            self.drawn = monotonic()

    def table(self):
        table = Table("rank", "state", "clock", "kernels", "collectives", "last", box=None, pad_edge=False)
        for rank, line in sorted(self.ranks.items()):
            colour = COLOURS[line["state"]]
            table.add_row(
                str(rank), f"[{colour}]{line['state']}[/]", f"{line['clock'] * 1e6:.1f} us", str(line["kernels"]),
                str(line["collectives"]), line["last"],
            )  # fmt: skip
        return table


plugin = LiveRanks
