"""What a rank has done so far, as its host counts it: FLOPs, and the batches that its program reports."""

from __future__ import annotations

Flops = dict[str, int]
"""FLOPs by the format that is multiplied (``"bf16"``)."""


class Account:
    """Running totals of one rank, from its start.

    Attributes:
        flops: of what the program asked for: forward and backward.
        recomputed: of forward work that a backward pass repeated, because its results had not been kept.
        tokens, samples: of the batches that the program noted (``kernbench.report_batch``); whole job, not this rank's share.
    """

    __slots__ = ("flops", "recomputed", "samples", "tokens")

    def __init__(self) -> None:
        self.flops: Flops = {}
        self.recomputed: Flops = {}
        self.tokens = 0
        self.samples = 0

    def copy(self) -> Account:
        """The totals as they are now."""
        copied = Account()
        copied.flops, copied.recomputed = dict(self.flops), dict(self.recomputed)
        copied.tokens, copied.samples = self.tokens, self.samples
        return copied

    def since(self, before: Account) -> Account:
        """What has been added since ``before``, an earlier copy."""
        added = Account()
        for name in ("flops", "recomputed"):
            then, now = getattr(before, name), getattr(self, name)
            setattr(
                added, name, {fmt: count - then.get(fmt, 0) for fmt, count in now.items() if count > then.get(fmt, 0)}
            )
        added.tokens, added.samples = self.tokens - before.tokens, self.samples - before.samples
        return added
