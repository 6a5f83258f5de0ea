"""Order: what happens before what in a run, accesses to memory that nothing orders, and what goes first where several could.

:mod:`~kernbench.order.strands` has the clocks, :mod:`~kernbench.order.shadow` who touched which bytes last,
:mod:`~kernbench.order.process` what one rank does, :mod:`~kernbench.order.graphs` its CUDA graphs (ADR 0147),
:mod:`~kernbench.order.findings` what describes a race (ADR 0122), :mod:`~kernbench.order.weak` what reads may see that nothing
orders (ADR 0152), :mod:`~kernbench.order.choices` the schedules (ADR 0129), and :mod:`~kernbench.order.conflicts` where another
one could matter.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.order.choices import DEFAULT as DEFAULT
from kernbench.order.choices import EVERYTHING as EVERYTHING
from kernbench.order.choices import VARIABLE as VARIABLE
from kernbench.order.choices import Choices as Choices
from kernbench.order.choices import GivenAnswer as GivenAnswer
from kernbench.order.choices import schedule_asked as schedule_asked
from kernbench.order.choices import schedule_of as schedule_of
from kernbench.order.choices import told as told
from kernbench.order.conflicts import Conflicts as Conflicts
from kernbench.order.conflicts import MetPair as MetPair
from kernbench.order.conflicts import OpenPoint as OpenPoint
from kernbench.order.findings import MODES as MODES
from kernbench.order.findings import FoundReport as FoundReport
from kernbench.order.findings import MemoryAccess as MemoryAccess
from kernbench.order.findings import Place as Place
from kernbench.order.findings import Race as Race
from kernbench.order.findings import Races as Races
from kernbench.order.findings import RaceSide as RaceSide
from kernbench.order.findings import mode_of as mode_of
from kernbench.order.findings_file import check_findings_path as check_findings_path
from kernbench.order.findings_file import write_findings as write_findings
from kernbench.order.graphs import GraphOrder as GraphOrder
from kernbench.order.graphs import ReplayedPlace as ReplayedPlace
from kernbench.order.process import RankOrder as RankOrder
from kernbench.order.process import kernel_ended as kernel_ended
from kernbench.order.process import met as met
from kernbench.order.regions import ByteRegion as ByteRegion
from kernbench.order.regions import region_of as region_of
from kernbench.order.regions import share_bytes as share_bytes
from kernbench.order.shadow import Shadow as Shadow
from kernbench.order.signal_words import SCOPES as SCOPES
from kernbench.order.strands import Moment as Moment
from kernbench.order.strands import Strand as Strand
from kernbench.order.undefined import Undefined as Undefined
from kernbench.order.undefined import UndefinedRead as UndefinedRead
from kernbench.order.weak import ReplacedBytes as ReplacedBytes
from kernbench.order.weak import WeakMemory as WeakMemory


class Order:
    """Watches the order of events of one simulation.

    Args:
        mode: what to do about a race (:data:`MODES`).
        locate: says where in the program the running rank is.
        weak: says what reads see that nothing orders; None: what was written last.

    Attributes:
        races: that were found.
        weak: as given.
    """

    def __init__(self, mode: str, locate: Callable[[], Place], weak: WeakMemory | None = None) -> None:
        self.races = Races(mode)
        self.weak = weak
        self._locate = locate

    def of(self, rank: int, world: object) -> RankOrder:
        """Watches a rank of a world that is about to run."""
        return RankOrder(rank, world, self.races, self._locate, self.weak)
