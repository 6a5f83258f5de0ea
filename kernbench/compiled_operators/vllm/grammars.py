"""Structured outputs of vLLM: ``vllm.v1.structured_output``.

A grammar is compiled at once, which takes no modelled time: vLLM gives it to a pool and asks in each step whether it has
ended, so that which step its request begins in would depend on the machine, and a scheduler with nothing else to do would ask
for ever.

Without data sampled tokens are not known, and what stands for them a grammar would reject, which ends the request. They are
taken to be some that it allows, and of those that do not end it, so that a request generates as many as it wants.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from kernbench.reporting import assume, is_simulated

_ASSUMED = "assumed: sampled tokens are some that the grammar of a structured output allows, and none ends it"


def follow_grammars(module: ModuleType) -> None:
    """Have grammars be there at once, and stay where they are for tokens that are not known: sampled ones, and drafts."""
    manager: Any = getattr(module, "StructuredOutputManager", None)
    if manager is None:
        return
    manager.__init__ = _at_once(manager.__init__)
    for name, answer in (("accept_tokens", lambda _: True), ("validate_tokens", lambda tokens: tokens)):
        method = getattr(manager, name, None)
        if callable(method):
            setattr(manager, name, _unless_unknown(method, answer))


def _at_once(init: Any) -> Any:
    @functools.wraps(init)
    def made(self: Any, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        if is_simulated():
            self._use_async_grammar_compilation = False

    return made


def _unless_unknown(method: Any, answer: Any) -> Any:
    @functools.wraps(method)
    def about(self: Any, request: Any, tokens: object) -> Any:
        if tokens and request.use_structured_output and assume(_ASSUMED):
            return answer(tokens)
        return method(self, request, tokens)

    return about
