"""What holds state across the steps of training, and the means over workers that it needs.

Everything talks to the other workers through a `Communicator`; a `Simulator` has them all in one
process. ``docs/training.md`` tells what each method does.
"""

from __future__ import annotations

from gcodec.training.collectives import all_gather_mean, tree_mean, two_phase_mean
from gcodec.training.communicator import Communicator
from gcodec.training.dgc import DGC
from gcodec.training.hybrid import hybrid
from gcodec.training.onebit_adam import OneBitAdam
from gcodec.training.powersgd import PowerSGD
from gcodec.training.simulator import Simulator

__all__ = [
    "DGC",
    "Communicator",
    "OneBitAdam",
    "PowerSGD",
    "Simulator",
    "all_gather_mean",
    "hybrid",
    "tree_mean",
    "two_phase_mean",
]
