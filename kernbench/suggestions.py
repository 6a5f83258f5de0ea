"""What a word that is unknown was probably meant to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_LONGEST_WORD = 100


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` was probably meant to be."""
    if len(word) > _LONGEST_WORD:
        return None
    by_fold = {name.casefold(): name for name in known}
    longer = [name for name in by_fold if word and name.startswith(word.casefold())]
    if len(longer) == 1:
        return by_fold[longer[0]]
    from difflib import get_close_matches  # only for who has mistyped

    matches = get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """For a message, behind the word: `` (did you mean NAME?)``, ``NAME`` as it is ``written`` there; empty if none is near."""
    close = nearest(word, known)
    return f" (did you mean {written(close)}?)" if close else ""
