"""``kernbench report``: a run in the browser, while it lasts and afterwards."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.commands import run
from kernbench.commands.run_options import LIVE
from kernbench.commands.torchrun_options import TorchrunCommand

if TYPE_CHECKING:
    from kernbench.html_report.server import ReportServer

_INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_PAGES, _TRACES = (".html", ".htm"), (".json", ".json.gz")


@click.group("report")
def command() -> None:
    """Show runs in the browser."""


def _serve(host: str, port: int, exit_when_done: bool, **given: Any) -> None:
    """Run PROGRAM as kernbench run does, and show it in the browser: how far each rank has got and what it waits for, memory,
    speed; once it has ended, its report. Ctrl-C ends run and serving.

    PROGRAM may also be a report that has been written (.html), or a trace (.json): that is served.

    Who can reach the address can read the page: by default this machine only.
    """
    from kernbench.html_report.server import ReportServer

    program: str = given["program"]
    written = None if given["module"] else _written(program)
    with ReportServer(host, port) as server:
        if written is not None:
            server.reported(written)
        click.echo(f"kernbench: {server.address} shows {program}; Ctrl-C ends this", err=True)
        code = 0 if written is not None else _run(server, given)
        try:
            server.finish()
            if not exit_when_done and code not in _INTERRUPTED:
                server.wait()
        except KeyboardInterrupt:
            click.echo(err=True)
    sys.exit(code)


def _run(server: ReportServer, given: dict[str, Any]) -> int | str | None:
    """Run; gives the exit code."""
    context = click.get_current_context()
    context.meta[LIVE] = server
    server.waits_for_run(" ".join((given["program"], *given["args"])))
    assert run.command.callback is not None
    try:
        context.invoke(run.command.callback, **given)
    except SystemExit as end:
        return end.code
    except BaseException as error:
        server.fail(str(error) or type(error).__name__)
        raise
    return 0


def _written(program: str) -> str | None:
    """The page of a report, or of a trace, that there is already; None: it is a program."""
    if program.endswith(_PAGES):
        from kernbench.html_report import read_page

        read_page(program)
        return Path(program).read_text(encoding="utf-8")
    if program.endswith(_TRACES):
        from kernbench.html_report import page_of, source_of_trace
        from kernbench.trace.reading import read_trace

        return page_of(source_of_trace(read_trace(program), Path(program).name))
    return None


_OWN: list[click.Parameter] = [
    click.Option(["--port"], type=click.IntRange(0, 65535), default=8765, show_default=True, help="Port to serve on; 0: one "
                 "that is free."),
    click.Option(["--host"], default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of this machine to serve "
                 "on; 0.0.0.0: all of them, for any machine that can reach it."),
    click.Option(["--exit-when-done"], is_flag=True, help="End with the run, instead of serving its report until Ctrl-C."),
]  # fmt: skip

command.add_command(
    TorchrunCommand(
        "serve", callback=_serve, help=_serve.__doc__, context_settings={"allow_interspersed_args": False},
        params=[*_OWN, *(param for param in run.command.params if param.name != "references")],
    )
)  # fmt: skip
