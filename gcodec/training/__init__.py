"""Training methods that keep state across steps, and the means over workers that they need.

Each method reaches the other workers through a `Communicator`; a `Simulator` runs all workers in
one process. Codecs and error feedback themselves live elsewhere. ``docs/training.md`` describes
each method.

Examples
--------
>>> import gcodec, numpy as np
>>> from gcodec.training import Simulator, all_gather_mean
>>> def worker(communicator, gradient):
...     return all_gather_mean(communicator, [gcodec.encode(gradient, "raw")])[0]
>>> simulator = Simulator(2)
>>> simulator.run(worker, [np.full(3, rank, np.float32) for rank in (1, 2)])
[array([1.5, 1.5, 1.5], dtype=float32), array([1.5, 1.5, 1.5], dtype=float32)]
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
