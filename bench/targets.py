"""Cost and accuracy of ecsq's rate control.

    python -m bench.targets DUMP...

Tensors of 64 Ki values or more, and normal and Laplace values, are encoded to each target.
Measured are the processor time, in units of an encode with the resulting step, on one thread, as
medians of three; and the achieved value as a fraction of the target. Each target has one line:
mean, 90th percentile and maximum of the times; minimum and maximum of the achieved fractions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

import gcodec
from bench.rd_points import LARGE, nmse_of, read, seconds

TARGETS = ("nmse=0.02", "nmse=0.1", "bits=0.5", "bits=1.5")
_ROUNDS = 3


def tensors(dumps: tuple[str, ...]) -> Iterator[np.ndarray]:
    """Yield the tensors to measure."""
    rng = np.random.default_rng(0)
    for draw in (rng.standard_normal, rng.laplace):
        yield draw(size=(512, 512)).astype(np.float32)
    for path in dumps:
        yield from (x for x in read(Path(path)).values() if x.size >= LARGE and x.any())


def measure(x: np.ndarray, trellis: str, target: str) -> tuple[float, float] | None:
    """Return cost and achieved fraction of a target; None if it cannot be reached."""
    codec = gcodec.parse(f"ecsq:trellis={trellis},{target}")
    try:
        payload, aimed = seconds(lambda: codec.encode(x), _ROUNDS)
    except gcodec.ParameterError:
        return None
    _, plain = seconds(lambda: payload.codec.encode(x), _ROUNDS)
    name, _, number = target.partition("=")
    if name == "bits":
        met = payload.nbits / x.size
    else:
        met = nmse_of(x, payload.codec.decode(payload, x.shape))
    return aimed / plain, met / float(number)


@click.command()
@click.argument("dumps", nargs=-1, type=click.Path(exists=True, dir_okay=False))
def main(dumps: tuple[str, ...]) -> None:
    """Print a line for each target."""
    os.environ["GCODEC_NUM_THREADS"] = "1"
    inputs = list(tensors(dumps))
    for trellis in ("no", "yes"):
        for target in TARGETS:
            measured = [
                result for x in inputs if (result := measure(x, trellis, target)) is not None
            ]
            times, ratios = np.array(measured).T
            shown = f"{times.mean():.1f} {np.percentile(times, 90):.1f} {times.max():.1f}"
            reached = f"{ratios.min():.3f} {ratios.max():.3f}"
            print(f"trellis={trellis} {target}: {shown} × one encode; {reached} reached of it")


if __name__ == "__main__":
    main()
