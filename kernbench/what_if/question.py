"""What is asked: a program, settings with their values, and how these reach the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.errors import ConfigError
from kernbench.grid import Point, expand
from kernbench.what_if.templates import Template

SYSTEM, GPUS = "system", "gpus"
"""Settings that describe the simulation; templates and filters may use them like others."""


@dataclass(frozen=True)
class Question:
    """A program at every combination of settings.

    Attributes:
        program: path of a script, or (``module``) name of a module, as ``kernbench run`` takes it.
        settings: values by name.
        systems: names or paths of systems.
        gpus: numbers of ranks.
        arguments: of the program, with ``{name}`` where a setting's value goes, or an expression over settings
            (``{gpus // tp}``); ``{{`` is a brace.
        environment: variables of the program, likewise.
        where: filters over the settings (``"tp * pp <= gpus"``): combinations that fail one are left out.
        steps: optimizer steps after which each run is stopped; None: it runs to its end.
        tokens_per_step, samples_per_step: of the whole job; numbers, or templates of them; default: what the program reports.
        data: whether values are computed.
        options: further options of ``kernbench run``.
    """

    program: str
    settings: Mapping[str, Sequence[object]] = field(default_factory=dict)
    systems: Sequence[str] = ("dgx_h100",)
    gpus: Sequence[int] = (8,)
    module: bool = False
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    where: Sequence[str] = ()
    steps: int | None = 3
    tokens_per_step: str | None = None
    samples_per_step: str | None = None
    data: bool = False
    options: Sequence[str] = ()

    def points(self) -> list[Point]:
        """Every combination that passes the filters, the number of GPUs running fastest. Raises ConfigError."""
        for name, values in self.settings.items():
            if not name.isidentifier():
                raise ConfigError(f"setting {name!r}: expected a name of letters, digits and _")
            if name in (SYSTEM, GPUS):
                raise ConfigError(f"setting {name!r} has a meaning of its own: use --{name}")
            if not values:
                raise ConfigError(f"setting {name!r} has no values")
        for number in self.gpus:
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{number!r} GPUs: expected whole numbers from 1 on")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps {self.steps}: expected at least 1")
        if not self.systems or not self.gpus:
            raise ConfigError("expected at least one system and one number of GPUs")
        self._require_use()
        found = expand({**self.settings, SYSTEM: list(self.systems), GPUS: list(self.gpus)}, self.where)
        if not found:
            raise ConfigError(f"no combination of settings passes {', '.join(map(repr, self.where))}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """What templates and filters may use."""
        return (*self.settings, SYSTEM, GPUS)

    def templates(self) -> dict[str, list[Template]]:
        """The templates by what they are for. Raises ConfigError for one that uses what is no setting."""
        per_step = {"--tokens-per-step": self.tokens_per_step, "--samples-per-step": self.samples_per_step}
        given = {
            "argument": list(self.arguments),
            **{f"--env {name}": [value] for name, value in self.environment.items()},
            **{option: [value] for option, value in per_step.items() if value is not None},
        }
        return {what: [Template(text, self.names, what) for text in texts] for what, texts in given.items()}

    def _require_use(self) -> None:
        """A setting that reaches nothing would give the same row again and again."""
        used = {name for templates in self.templates().values() for each in templates for name in each.used}
        if idle := [name for name in self.settings if name not in used]:
            raise ConfigError(
                f"setting {', '.join(idle)} reaches nothing: write {{{idle[0]}}} in an argument of the program, in --override "
                "or in --env"
            )
