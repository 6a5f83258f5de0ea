"""Numbers of things in sentences, and that messages write them by the helper."""

from __future__ import annotations

import pytest

from kernbench.plurals import counted


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (counted(1, "call"), "1 call"), (counted(0, "call"), "0 calls"), (counted(2, "call"), "2 calls"),
        (counted(1024, "operation", spec=","), "1,024 operations"), (counted(1, "child", "children"), "1 child"),
        (counted(3, "child", "children"), "3 children"),
    ],
)  # fmt: skip
def test_the_noun_has_the_form_of_its_number(written: str, meant: str) -> None:
    assert written == meant
