"""Structured outputs of vLLM: a grammar is there at once, and without data allows what is sampled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import kernbench
from kernbench import reporting
from kernbench.compiled_operators.vllm.grammars import follow_grammars

GUIDED, FREE = SimpleNamespace(use_structured_output=True), SimpleNamespace(use_structured_output=False)


def _managers() -> Any:
    """The class of vLLM's managers, as far as the stand-in relies on it: its grammars allow 7 alone."""

    class StructuredOutputManager:
        def __init__(self) -> None:
            self._use_async_grammar_compilation = True

        def accept_tokens(self, request: Any, tokens: list[int]) -> bool:
            return not request.use_structured_output or set(tokens) == {7}

        def validate_tokens(self, request: Any, tokens: list[int]) -> list[int]:
            return [each for each in tokens if each == 7] if request.use_structured_output else tokens

    follow_grammars(SimpleNamespace(StructuredOutputManager=StructuredOutputManager))  # type: ignore[arg-type]
    return StructuredOutputManager


def _asked(managers: Callable[[], Any]) -> list[Any]:
    made = managers()
    about = [(GUIDED, [0]), (GUIDED, [7, 0]), (GUIDED, []), (FREE, [0])]
    return [
        made._use_async_grammar_compilation, *(made.accept_tokens(*each) for each in about),
        *(made.validate_tokens(*each) for each in about),
    ]  # fmt: skip


FOLLOWED = [False, False, False, True, [], [7], [], [0]]
ALLOWED = [True, True, False, True, [0], [7, 0], [], [0]]


@pytest.mark.parametrize("data", [True, False])
def test_in_a_rank(data: bool) -> None:
    found: list[Any] = []

    def work(rank: int) -> None:
        found.append(_asked(_managers()))

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(work, nprocs=1)
        remarks = [*ctx.simulation.remarks]
    assert found == [[False, *(FOLLOWED if data else ALLOWED)]]
    assert any("grammar of a structured output" in each for each in remarks) is not data


@pytest.mark.parametrize("data", [True, False])
def test_in_a_process_beside_ranks(data: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    companion = SimpleNamespace(computes=data, report=lambda *said: told.append(said))
    monkeypatch.setattr(reporting, "_current_companion", lambda: companion)
    assert _asked(_managers()) == [False, *(FOLLOWED if data else ALLOWED)]
    assert {name for name, _ in told} == (set() if data else {"remark"})


def test_outside_of_a_simulation() -> None:
    assert _asked(_managers()) == [True, *FOLLOWED]
