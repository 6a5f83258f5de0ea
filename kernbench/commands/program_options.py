"""Options of all commands that run, or import, a program of the user's."""

from __future__ import annotations

import click

stand_in_option = click.option(
    "--stand-in", "stand_ins", metavar="NAME", multiple=True, help="Let the program import NAME, a package of CUDA builds that "
    "is not installed (flash_attn) or whose compiled modules are not for this machine (vllm), by what stands in for it; auto: "
    "whatever needs it and has one (kernbench stand-ins lists them). May be repeated.",
)  # fmt: skip
"""``--stand-in NAME``, which a command gets as ``stand_ins``."""

module_option = click.option("-m", "--module", "module", is_flag=True, help="PROGRAM is the name of a module.")
"""``-m``, which a command gets as ``module``."""
