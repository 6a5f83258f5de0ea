"""torchrun's options, so that a torchrun command line works with the word exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from kernbench.errors import ConfigError
from kernbench.input_files import exists, is_file
from kernbench.plugins.command import PluginCommand

_WITHOUT_EFFECT = {
    "--rdzv-backend": "Ranks meet in the simulation",
    "--rdzv-endpoint": "Ranks meet in the simulation",
    "--rdzv-conf": "Ranks meet in the simulation",
    "--node-rank": "All nodes are simulated here",
    "--local-addr": "All nodes are simulated here",
    "--monitor-interval": "A failure is seen at once",
    "--shutdown-timeout": "A failure is seen at once",
    "--start-method": "Ranks are no processes",
    "--event-log-handler": "There is no agent",
    "--log-dir": "Output is not redirected",
    "--redirects": "Output is not redirected",
    "--tee": "Output is not redirected",
    "--local-ranks-filter": "Output is not redirected",
    "--logs-specs": "Output is not redirected",
    "--duplicate-stdout-filters": "Output is not redirected",
    "--duplicate-stderr-filters": "Output is not redirected",
    "--numa-binding": "Ranks are not bound to processors",
    "--signals-to-handle": "Signals are Python's",
}
"""Options with a value that are accepted and mean nothing here, by the reason."""

_FLAGS_WITHOUT_EFFECT = {"--standalone": "Ranks meet in the simulation"}

_VARIABLES = {
    "--master-addr": ("MASTER_ADDR", "localhost"),
    "--master-port": ("MASTER_PORT", "29500"),
    "--rdzv-id": ("TORCHELASTIC_RUN_ID", "kernbench"),
    "--max-restarts": ("TORCHELASTIC_MAX_RESTARTS", "0"),
    "--role": ("ROLE_NAME", "default"),
}
"""Options whose value a rank finds in its environment: variable, default."""

_UNSUPPORTED = ("--no-python", "--run-path", "--virtual-local-rank")

_TORCHRUNS = {
    option[2:].replace("-", "_")
    for option in (
        "--nproc-per-node", "--nnodes", "--module", *_WITHOUT_EFFECT, *_FLAGS_WITHOUT_EFFECT, *_VARIABLES, *_UNSUPPORTED,
    )
}  # fmt: skip

_OTHER_LAUNCHERS = dict.fromkeys(
    ("--nprocs", "--num-processes", "--num-procs", "--num-gpus", "--gpus", "--world-size", "-n", "-np"),
    "--nproc-per-node",
) | dict.fromkeys(("--num-nodes", "--num-machines", "--nodes", "-N"), "--nnodes")
"""What mpirun, accelerate, deepspeed, srun and spawn call an option of torchrun's."""

DASHES = "kernbench.commands.dashes"
"""In the context of a command: whether ``--`` stood before its program."""

Command = Callable[..., Any]


def torchrun_options(command: Command) -> Command:
    """Add torchrun's options to a command, which receives ``variables``: environment variables for the ranks."""

    def with_variables(**kwargs: object) -> Any:
        for option in _UNSUPPORTED:
            if kwargs.pop(_key(option)):
                raise ConfigError(f"{option} is torchrun's, and not supported: a rank runs a Python script or a module")
        for option in (*_WITHOUT_EFFECT, *_FLAGS_WITHOUT_EFFECT):
            kwargs.pop(_key(option))
        variables = {variable: kwargs.pop(_key(option)) for option, (variable, _) in _VARIABLES.items()}
        return command(variables=variables, **kwargs)

    with_variables.__name__, with_variables.__doc__ = command.__name__, command.__doc__
    wrapped: Command = with_variables
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option, (variable, default) in _VARIABLES.items():
        wrapped = click.option(
            *_spellings(option), default=default, show_default=True, help=f"As torchrun's: {variable}."
        )(wrapped)
    for option, reason in _WITHOUT_EFFECT.items():
        wrapped = click.option(*_spellings(option), hidden=True, help=f"As torchrun's, without effect. {reason}.")(
            wrapped
        )
    for option in (*_FLAGS_WITHOUT_EFFECT, *_UNSUPPORTED):
        wrapped = click.option(*_spellings(option), is_flag=True, hidden=True)(wrapped)
    return wrapped


class TorchrunCommand(PluginCommand):
    """A command whose options may be abbreviated, as torchrun's: ``--nproc 2``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click; beginnings of options are made whole first, and it is noted whether the program stands behind ``--``."""
        whole, rest = _whole(args, self.params)
        ctx.meta[DASHES] = rest[:1] == ["--"]
        try:
            return super().parse_args(ctx, whole + rest)
        except click.NoSuchOption as error:
            hidden = {name for param in self.params if getattr(param, "hidden", False) for name in param.opts}
            near = [each for each in error.possibilities or () if each not in hidden]
            meant = _OTHER_LAUNCHERS.get(error.option_name.replace("_", "-"))
            if meant is None:
                raise click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx) from None
            # click would take only what is spelled alike
            raise click.UsageError(f"{error.message} Did you mean {meant!r}?", error.ctx) from None


def _whole(args: Sequence[str], params: Sequence[click.Parameter]) -> tuple[list[str], list[str]]:
    """The options, with whole names in the place of beginnings that fit one of them, and what comes behind them.

    One that fits one of torchrun's is that one. What cannot be decided stays, for click to say.
    """
    options = {name: param for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")}
    rest, whole = [*args], []
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, *value = rest[0].split("=", 1)
        if name not in options:
            fits = {id(options[each]): each for each in options if name.startswith("--") and each.startswith(name)}
            torchruns = [each for each in fits.values() if _key(each) in _TORCHRUNS]
            name, *others = torchruns or fits.values() or [name]
            if others or name not in options:
                break
        del rest[0]
        option = options[name]
        if not value and (alone := _alone(option)) and not _names_choice(option, rest):
            value = [alone]
        whole.append("=".join([name, *value]))
        if not value and isinstance(option, click.Option) and not option.is_flag and rest:
            whole.append(rest.pop(0))
    return whole, rest


def _alone(option: click.Parameter) -> str | None:
    """What an option means that stands without its value, where it may."""
    alone = option.flag_value if isinstance(option, click.Option) and not option.is_flag else None
    return alone if isinstance(alone, str) else None


def _names_choice(option: click.Parameter, rest: Sequence[str]) -> bool:
    """Whether the next word is the value of an option that may stand alone, and not the program or another option.

    A word that could be neither, with a program behind it, is meant as the value.
    """
    if not isinstance(option.type, click.Choice) or not rest or rest[0].startswith("-"):
        return False
    if rest[0] in option.type.choices or not rest[1:] or not is_file(rest[1]):
        return rest[0] in option.type.choices
    from kernbench.commands.run_command import found

    return not exists(rest[0]) and found(rest[0]) is None


def _spellings(option: str) -> tuple[str, ...]:
    """torchrun takes dashes and underscores."""
    return tuple(dict.fromkeys((option, "--" + option[2:].replace("-", "_"), _key(option))))


def _key(option: str) -> str:
    return option[2:].replace("-", "_")


class RanksPerNode(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number, or ``gpu`` / ``auto``: as many as the system has SIPs per node (None stands for that)."""

    name = "N|gpu|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        """The number, ``gpu`` or ``auto``."""
        if value in ("gpu", "auto") or isinstance(value, int):
            return value
        if value == "cpu":
            self.fail("'cpu' would depend on this machine: give a number, or 'gpu' for one rank per SIP", param, ctx)
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r}: expected a number, 'gpu' or 'auto'", param, ctx)
        if number < 1:
            self.fail(f"{value}: expected at least 1", param, ctx)
        return number


class Nodes(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A number of nodes, or ``MIN:MAX``, of which the simulation has the larger."""

    name = "N|MIN:MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The larger number."""
        if isinstance(value, int):
            return value
        first, _, last = value.partition(":")
        try:
            least, most = int(first), int(last or first)
        except ValueError:
            self.fail(f"{value!r}: expected a number or MIN:MAX", param, ctx)
        if least < 1:
            self.fail(f"{value}: expected at least 1", param, ctx)
        if most < least:
            self.fail(f"{value}: MIN comes first", param, ctx)
        return most
