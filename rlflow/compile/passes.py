"""The passes, in the order they run. A pass is one more file and one more name here.

CHECKS say what is wrong:

own       one writer a feedback; who holds which version; moves; how the loop is closed
infer     dtype, shape, role and rows of every field; what log-probs are of
version   which version of which feedback every field depends on
live      which calls and fields the next step depends on; which are dropped, and why
order     stream → batch → pad → rebalance → shard → micro; sizes that divide
place     which process runs a call, on which devices; who sleeps when

PLANS refuse nothing, and run on a graph that nothing is wrong with:

drops     where each column is read last, and freed
transport what crosses from process to process; which row plans are one; what lives across steps
"""

from __future__ import annotations

from collections.abc import Callable

from ..language.diagnostic import Diagnostic
from .drops import drops
from .facts import Facts
from .infer import infer
from .ir import Graph
from .live import live
from .order import order
from .own import own
from .place import place
from .transport import transport
from .version import version

Pass = Callable[[Graph, Facts], list[Diagnostic]]

CHECKS: tuple[Pass, ...] = (own, infer, version, live, order, place)
PLANS: tuple[Pass, ...] = (drops, transport)
