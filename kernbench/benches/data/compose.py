"""Composes ``harbour.txt``, the text that ``kernbench.benches.train_gpt`` learns: plain sentences drawn from a small grammar.

    python -m kernbench.benches.data.compose > kernbench/benches/data/harbour.txt

The text is kernbench's own. It has what a small model can learn in a minute: spelling, word order, agreement of number, and
names that come back within a paragraph.
"""

from __future__ import annotations

import random
import sys

SIZE = 64 * 1024
NAMES = ("Ada", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Karla", "Leo")
TRADES = ("the pilot", "the baker", "the keeper of the light", "the sailmaker", "the old captain", "the clerk")
THINGS = ("boat", "net", "lantern", "rope", "barrel", "crate", "letter", "map", "anchor", "bell", "sail", "basket")
QUALITIES = ("small", "heavy", "broken", "new", "green", "wooden", "empty", "forgotten", "wet", "good")
PLACES = ("on the quay", "by the lighthouse", "at the market", "under the bridge", "in the harbour", "near the sluice")
TIMES = ("In the morning", "Before noon", "After the storm", "At low tide", "On Sunday", "When the fog came")
DEEDS = ("found", "carried", "mended", "sold", "painted", "hid", "counted", "wanted", "lost", "bought")
WEATHER = (
    "The wind turned to the north.",
    "Rain fell on the roofs.",
    "The sea was calm.",
    "Gulls cried over the pier.",
)
NUMBERS = ("two", "three", "four", "seven", "twelve")


def sentence(draw: random.Random, hero: str, other: str) -> str:
    """One sentence about the two of the paragraph."""
    thing, quality, place = draw.choice(THINGS), draw.choice(QUALITIES), draw.choice(PLACES)
    article = "an" if quality[0] in "aeiou" else "a"
    patterns = (
        f"{draw.choice(TIMES)} {hero} {draw.choice(DEEDS)} {article} {quality} {thing} {place}.",
        f"{hero} asked {other} for the {thing}, but the {thing} was {quality}.",
        f"There were {draw.choice(NUMBERS)} {quality} {thing}s {place}, and {other} {draw.choice(DEEDS)} them all.",
        f'"Where is my {thing}?" said {other}. "It is {place}," said {hero}.',
        f"{hero} and {other} {draw.choice(DEEDS)} the {quality} {thing} together.",
        f"Nobody {place} knew why {draw.choice(TRADES)} {draw.choice(DEEDS)} {article} {quality} {thing}.",
        draw.choice(WEATHER),
    )
    return draw.choice(patterns)


def compose(size: int = SIZE, seed: int = 0) -> str:
    """About ``size`` characters, in paragraphs of four to eight sentences."""
    draw = random.Random(seed)
    paragraphs: list[str] = []
    while sum(map(len, paragraphs)) < size:
        hero, other = draw.sample(NAMES, 2)
        sentences = [sentence(draw, hero, other) for _ in range(draw.randint(4, 8))]
        paragraphs.append(" ".join(sentences) + "\n")
    return "\n".join(paragraphs)


if __name__ == "__main__":
    sys.stdout.write(compose())
