"""The option of commands that write a page for the browser."""

from __future__ import annotations

import click

LIVE = "kernbench.commands.live"
"""In the context of a command: the :class:`~kernbench.html_report.server.ReportServer` that shows its run while it lasts."""


def _checked(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """What cannot be written is said before anything runs."""
    if value is not None and not ctx.resilient_parsing:
        from kernbench.html_report import check_report_path

        check_report_path(value)
    return value


report_option = click.option(
    "--report", "report_file", metavar="FILE", callback=_checked,
    help="Write a report here, a page for the browser: report.html.",
)  # fmt: skip
"""``--report FILE``, which a command gets as ``report_file``. ConfigError if no report can be written there."""
