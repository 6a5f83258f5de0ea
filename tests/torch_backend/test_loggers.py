"""Loggers are each rank's: handlers, levels, filters, and what is switched off."""

from __future__ import annotations

import io
import logging
import logging.config
from typing import Any

import torch.distributed as dist

from tests.torch_backend.conftest import Ranks


def test_basic_config_is_for_who_calls_it(ranks: Ranks) -> None:
    """Also ``force``, and ``dictConfig``, which close the handlers that they find."""
    root = logging.getLogger()
    before = root.level, [*root.handlers], logging.root.manager.disable

    def body() -> str:
        rank = dist.get_rank()
        out = io.StringIO()
        for handler in root.handlers[:]:
            root.removeHandler(handler)
        logging.basicConfig(format=f"{rank}: %(message)s", level=logging.INFO if rank else logging.ERROR, stream=out)
        dist.barrier()
        if rank == 3:
            logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        dist.barrier()
        logging.getLogger("kernbench.test").info("hello")
        logging.getLogger("kernbench.test").error("oh")
        return out.getvalue()

    assert ranks(body) == ["0: oh\n", *(f"{rank}: hello\n{rank}: oh\n" for rank in range(1, 4))]
    assert (root.level, root.handlers, logging.root.manager.disable) == before


def test_each_attribute(ranks: Ranks) -> None:
    logger = logging.getLogger("kernbench.test.attributes")
    logger.setLevel(logging.WARNING)

    def state(logger: Any) -> tuple[Any, ...]:
        return logger.level, logger.propagate, logger.disabled, len(logger.filters), logging.root.manager.disable

    before = state(logger)

    def body() -> tuple[Any, ...]:
        rank = dist.get_rank()
        made = logging.getLogger("kernbench.test.made_by_a_rank")
        if rank == 1:
            for each in (logger, made):
                each.setLevel(5)
                each.propagate = False
                each.disabled = True
                each.filters.append(lambda record: True)
            logging.disable(logging.CRITICAL)
        dist.barrier()
        return state(logger), state(made), logger.isEnabledFor(logging.ERROR)

    assert ranks(body) == [
        ((5, False, True, 1, 50), (5, False, True, 1, 50), False) if rank == 1
        else ((30, True, False, 0, 0), (0, True, False, 0, 0), True)
        for rank in range(4)
    ]  # fmt: skip
    assert state(logger) == before
    assert state(logging.getLogger("kernbench.test.made_by_a_rank")) == (0, True, False, 0, 0)
    assert vars(logging.Logger).keys().isdisjoint({"level", "handlers"})


def test_which_loggers_there_are_is_each_ranks(ranks: Ranks) -> None:
    """Those of what ranks share are there for all, main's too. Who switches off existing ones leaves others' alone."""
    logging.getLogger("made_by_main.part")

    def body() -> tuple[Any, ...]:
        rank, names = dist.get_rank(), ("job", "job.part", "made_by_main", "made_by_main.part", "torch", "job.other")

        def known() -> list[bool]:
            return [name in logging.root.manager.loggerDict for name in names]

        if rank == 1:
            logging.getLogger("job.part")
        dist.barrier()
        before = known()
        if rank == 0:
            logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
        made = logging.getLogger("job.part")
        return before, known(), made.disabled, made is logging.getLogger("job").getChild("part")

    shared, later = [True, True, True], [True, True, *[True] * 3, False]
    assert ranks(body) == [([rank == 1] * 2 + shared + [False], later, False, True) for rank in range(4)]
    assert "loggerDict" not in vars(logging.Manager)
