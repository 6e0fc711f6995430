"""Training methods that keep state across steps, and the means over workers that they need.

Each method reaches the other workers through a `Communicator`; a `Simulator` runs all workers in
one process. Codecs and error feedback themselves live elsewhere. ``docs/training.md`` describes
each method.
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
