"""How every command ends: with one rule for exit codes, and one for what is printed of an error.

0: all is well. 1: a program, a point, a check has failed, or a file cannot be written. 2: the command line or a description is
wrong (:attr:`kernbench.errors.KernbenchError.exit_code`). N: a program under ``kernbench run`` has ended with ``sys.exit(N)``.
128 and the number of a signal that has ended it.
What kernbench explains itself has no traceback; of everything else the program's own lines are shown.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

import click

from kernbench.advice import advice_for
from kernbench.errors import HiddenBlockingError, KernbenchError
from kernbench.input_files import shortened
from kernbench.standard_output import LostOutput, forget_lost, is_lost, require_output


class FromCommand(Exception):
    """What a command has raised that click would take for its own business.

    Attributes:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def exit_code_of(
    run: Callable[[], object], command: Callable[[], click.Command | None], *, name: str = "kernbench"
) -> int:
    """Run it, and print what is wrong; gives the exit code.

    Args:
        run: what the command does. It may end with ``SystemExit``.
        command: gives the click command whose options an error's advice is put into the words of.
        name: of the command, before an error.
    """
    try:
        try:
            run()
        except SystemExit as end:
            require_output()
            return _code_of(end)
        except OSError as error:
            if is_lost(error):
                require_output()
            raise
        except FromCommand as raised:
            require_output()  # it may be the very thing
            raise raised.error from None
        require_output()
    except LostOutput as lost:
        return tell_lost(lost, name=name)
    except KeyboardInterrupt as error:
        click.echo(f"{name}: interrupted", err=True)
        return 128 + int(getattr(error, "signum", signal.SIGINT))
    except HiddenBlockingError as error:
        click.echo(f"{name}: error: a rank waits for ever: see above", err=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(error.exit_code)  # what Python does at its end would wait for the same lock
    except KernbenchError as error:
        click.echo(f"{name}: error: {tidy(for_command(error, command()))}", err=True)
        return error.exit_code
    except Exception as error:
        from kernbench.scheduler.tracebacks import user_traceback

        click.echo(user_traceback(error).rstrip(), err=True)
        if advice := advice_for(error):
            click.echo(advice, err=True)
        click.echo(f"{name}: failed: {type(error).__name__}", err=True)
        return 1
    return 0


def tell_lost(lost: LostOutput, *, name: str = "kernbench") -> int:
    """Say, once, that output is lost; gives the exit code."""
    forget_lost()
    if not lost.is_quiet:
        click.echo(f"{name}: error: cannot write standard output: {lost.error.strerror}", err=True)
    return lost.exit_code


def _code_of(end: SystemExit) -> int:
    """As Python has it: a text is printed, and means 1."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    click.echo(end.code, err=True)
    return 1


def run_command(command: click.Command, args: Sequence[str], prog_name: str) -> None:
    """As ``command.main``, but that what the command raises stays what it is, Ctrl-C too. Ends with ``SystemExit``."""
    try:
        with command.make_context(prog_name, list(args)) as context:
            command.invoke(context)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        sys.exit(tell_usage(error))
    sys.exit(0)


_LONGEST_LINE = 4000  # of a message


def tidy(text: str) -> str:
    """A message whose lines can be printed, whatever is quoted in it; of very long ones the beginning."""
    return "\n".join(shortened(line, _LONGEST_LINE) for line in text.expandtabs().splitlines())


def tell_usage(error: click.ClickException) -> int:
    """Say what is wrong with a command line, whatever is quoted of it; gives the exit code."""
    text = io.StringIO()
    error.show(text)
    click.echo(tidy(text.getvalue()), err=True)
    return error.exit_code


def for_command(error: KernbenchError, command: click.Command | None) -> str:
    """The message, in which a setting that would help is the option by which ``command`` takes it (``--nnodes 2``)."""
    text, remedy = str(error), getattr(error, "remedy", None)
    if remedy is None or command is None:
        return text
    name, value = remedy
    options = [each for each in command.params if isinstance(each, click.Option) and each.name in (name, f"n{name}")]
    return text.replace(f"{name}={value}", f"{options[0].opts[0]} {value}") if options else text
