"""Count how often the host waits during the step search on real gradients; see docs/gpu.md.

    python tests/cuda/count_waits.py gradients.safetensors ...

The first matrices of 2^14 to 2^18 elements of each file are coded on the host shim.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import shim

import gcodec
from gcodec.runtime import device as devices
from gcodec.tensorfiles.dumps import open_dump

SPECS = ("ecsq", "ecsq:bits=2", "ecsq:rounding=stochastic", "ecsq:step=0.0001")
MOST = 4  # most tensors of a file


def matrices(path: str) -> Iterator[np.ndarray]:
    with open_dump(path) as dump:
        fit = (
            e for e in dump.entries if len(e.shape) == 2 and 14 <= np.log2(np.prod(e.shape)) <= 18
        )
        for entry in itertools.islice(fit, MOST):
            yield np.asarray(dump.load(entry), np.float32)


def main(paths: list[str]) -> None:
    with devices.use(shim.ShimDevice()) as device:

        def waits(call: Callable[[], Any]) -> int:
            before = device.fetched
            call()
            return device.fetched - before

        sample = [device.to_device(x) for path in paths for x in matrices(path)]
        for spec in SPECS:
            gcodec.encode(sample[0], spec)  # copies the tables to the device
            first, again = [], []
            for x in sample:
                feedback = gcodec.Feedback(spec)
                first.append(waits(lambda f=feedback, x=x: f.compress("w", x)))
                again.append(waits(lambda f=feedback, x=x: f.compress("w", x)))
            reported = (f"{min(actual)} to {max(actual)}" for actual in (first, again))
            print(
                f"{spec}: {' at first, '.join(reported)} at the next step, "
                f"of {len(sample)} tensors"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
