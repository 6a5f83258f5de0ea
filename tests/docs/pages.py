"""Documentation that runs: what a page's fenced blocks mean, and how they are carried out.

A page is run in an empty folder of its own, block by block, in order: what it needs of the repository it has to copy, as a
reader does (``kernbench examples copy``):

    ```python                   runs in a process of its own
    ```output                   right after it: what it prints
    ```python file=NAME         is written to NAME, for the blocks that follow (any language)
    ```console                  lines after "$ " are shell commands, the others what they print
    ```console exit=1           the last command's exit code, where it is not 0
    ```console skip="reason"    not run (also python)

Blocks of other languages are for the reader only. In expected output, a line ``...`` stands for any number of lines, and
``...`` within a line for any characters. An image of a page whose name the page has written into its folder must equal
the one in the repository, byte for byte.

With ``KERNBENCH_UPDATE_DOCS=1`` in the environment, output and images that differ are rewritten instead.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.warm_python import WARM

ROOT = Path(__file__).parents[2]
UPDATE = bool(os.environ.get("KERNBENCH_UPDATE_DOCS"))

_FENCE = re.compile(r"^```(\S+)?(.*)$")
_LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def find_pages() -> list[Path]:
    """The pages at the root and everything under docs, as paths from the root."""
    return sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))


@dataclass
class Block:
    """A fenced block: ``lines[begin:end]`` of the page are its text."""

    language: str
    options: dict[str, str]
    begin: int
    end: int
    text: str


@dataclass
class Page:
    """One page and the folder that it runs in; ``is_warm``: its Pythons are forks of a process that has imported much."""

    path: Path
    folder: Path
    is_warm: bool = False
    lines: list[str] = field(init=False)
    problems: list[str] = field(default_factory=list)
    _edits: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = (ROOT / self.path).read_text(encoding="utf-8").splitlines()

    def run(self) -> None:
        """Carry out all blocks; what differs is in ``problems``, or rewritten."""
        blocks = list(self._blocks())
        for number, block in enumerate(blocks):
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            if "skip" in block.options:
                continue
            if "file" in block.options:
                (self.folder / block.options["file"]).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                expected = after if after is not None and after.language == "output" else None
                self._python(block, expected)
            elif block.language == "console":
                self._console(block)
        self._check_links()
        if UPDATE:
            self._rewrite()

    def _blocks(self) -> Iterator[Block]:
        opening: tuple[int, str, dict[str, str]] | None = None
        for number, line in enumerate(self.lines):
            fence = _FENCE.match(line)
            if fence is None:
                continue
            if opening is None:
                words = [word.partition("=") for word in shlex.split(fence[2])]
                opening = (number + 1, fence[1] or "", {key: value for key, _, value in words})
            else:
                begin, language, options = opening
                text = "".join(f"{line}\n" for line in self.lines[begin:number])
                yield Block(language, options, begin, number, text)
                opening = None

    def _python(self, block: Block, expected: Block | None) -> None:
        example = self.folder / f"example_{block.begin}.py"  # a file: some tools read the source of what they run
        example.write_text(block.text, encoding="utf-8")
        code, printed = self._execute(f"python {example.name}")
        if code:
            self._problem(block.begin, f"the example fails:\n{printed}")
        elif expected is not None:
            self._compare(expected.begin, expected.end, expected.text, printed)
        elif printed:
            self._problem(block.begin, f"the example prints, and no ```output block follows it:\n{printed}")

    def _console(self, block: Block) -> None:
        at = block.begin
        while at < block.end:
            line = self.lines[at]
            if not line.startswith("$ "):
                self._problem(at, "a console block starts with '$ ' and a command")
                return
            command = line[2:]
            end = at + 1
            while command.endswith("\\"):
                command = command[:-1] + self.lines[end]
                end += 1
            begin = end
            while end < block.end and not self.lines[end].startswith("$ "):
                end += 1
            code, printed = self._execute(command)
            wanted = int(block.options.get("exit", 0)) if end == block.end else 0
            if code != wanted:
                self._problem(at, f"exit code {code}, expected {wanted}:\n{printed}")
            else:
                self._compare(begin, end, "".join(f"{line}\n" for line in self.lines[begin:end]), printed)
            at = end

    def _execute(self, command: str) -> tuple[int, str]:
        """Run a shell command where ``python`` and ``kernbench`` are those of this process and this repository."""
        tools = self.folder / ".bin"
        tools.mkdir(exist_ok=True)
        for name, target in (("python", ""), ("kernbench", "-m kernbench.cli")):
            tool = tools / name
            if self.is_warm:
                WARM.executable(tool, target)
            else:
                tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {target} "$@"\n')
                tool.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "KERNBENCH_PROGRESS": "0",  # how far a run has got is a matter of the machine
        }
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.replace(f"{self.folder}/", "")

    def _compare(self, begin: int, end: int, expected: str, printed: str) -> None:
        if matches(expected, printed):
            return
        if UPDATE:
            # a line that is right as far as it goes keeps its "..."
            kept = [line for line in expected.splitlines() if "..." in line and line.strip() != "..."]
            lines = [next((line for line in kept if matches(line, new)), new) for new in printed.splitlines()]
            self._edits.append((begin, end, "\n".join(lines)))
        else:
            self._problem(begin, f"expected:\n{expected}printed:\n{printed}")

    def _check_links(self) -> None:
        """Links within the repository lead somewhere; images that the page has drawn are up to date."""
        for number, line in enumerate(self.lines):
            for image, target in _LINK.findall(line):
                if "://" in target or target.startswith("mailto:"):
                    continue
                there = (ROOT / self.path).parent / target
                drawn = self.folder / there.name
                if image and drawn.is_file() and (not there.is_file() or drawn.read_bytes() != there.read_bytes()):
                    if UPDATE:
                        shutil.copyfile(drawn, there)
                    else:
                        self._problem(number, f"the page draws another {target} than the repository has")
                elif not there.exists():
                    self._problem(number, f"{target} does not exist")

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(f"{self.path}:{line + 1}: {text}")

    def _rewrite(self) -> None:
        for begin, end, printed in sorted(self._edits, reverse=True):
            self.lines[begin:end] = printed.splitlines()
        if self._edits:
            (ROOT / self.path).write_text("\n".join(self.lines) + "\n", encoding="utf-8")


def matches(expected: str, printed: str) -> bool:
    """Whether ``printed`` is what ``expected`` says, with its ``...``; spaces at the ends of lines do not count."""
    parts = []
    for line in expected.splitlines():
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n")
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(parts), text) is not None
