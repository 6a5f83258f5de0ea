"""Exploring: a program is run under many schedules until something is found, which is shrunk and can be replayed.

:mod:`~kernbench.explore.trial` has what one run came to, :mod:`~kernbench.explore.watching` how that is seen,
:mod:`~kernbench.explore.search` the schedules to run and how a found one is shrunk (ADR 0129), and
:mod:`~kernbench.explore.exhaustive` the search through all of them (ADR 0137).
"""

from kernbench.explore.exhaustive import SearchedOrders as SearchedOrders
from kernbench.explore.exhaustive import searched as searched
from kernbench.explore.search import FoundTrouble as FoundTrouble
from kernbench.explore.search import explored as explored
from kernbench.explore.search import shrunk as shrunk
from kernbench.explore.trial import Trial as Trial
from kernbench.explore.trial import Trouble as Trouble
from kernbench.explore.trial import compared as compared
from kernbench.explore.trial import ulps as ulps
from kernbench.explore.watching import Watch as Watch
