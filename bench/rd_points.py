"""Bits and errors of settings, and the bits at an error between them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gcodec
from bench.rd_grid import Dial
from gcodec.tensorfiles.dumps import open_dump

LARGE, SMALL = 1 << 16, 1 << 12  # values of a tensor
SEED = 1
_ALONE = ("none", "huffman", "pair", "planes", "rans")  # codes of minifloat


class Point(NamedTuple):
    """What a setting makes of a tensor.

    Attributes
    ----------
    error : float
        ‖x − x̂‖²/‖x‖²; 0 where x̂ = x, of tensors of zeros too.
    nbits : float
        Of the whole message.
    encode, decode : float
        Seconds of the processor; NaN where nobody asked.
    """

    error: float
    nbits: float
    encode: float = math.nan
    decode: float = math.nan


class Curve(NamedTuple):
    """The points of a dial on a tensor, in the dial's order."""

    points: tuple[Point, ...]
    between: bool

    def at(self, target: float) -> Point | None:
        """Return the cheapest point with that error, or None.

        That is a setting whose error is no larger; or, where the dial goes between settings, a
        point between two neighbours, one at or below the target and one above it, linear in the
        logarithm of the error.
        """
        admissible = [point for point in self.points if point.error <= target]
        if self.between:
            for pair in zip(self.points, self.points[1:], strict=False):
                low, high = sorted(pair)
                if 0 < low.error <= target < high.error:
                    share = math.log(target / low.error) / math.log(high.error / low.error)
                    mixed = ((1 - share) * a + share * b for a, b in zip(low, high, strict=True))
                    admissible.append(Point(target, *list(mixed)[1:]))
        return min(admissible, key=lambda point: point.nbits, default=None)


class Tensor(NamedTuple):
    """A tensor that is measured, and the target that is its own.

    Attributes
    ----------
    name : str
    x : array
    fp4, fp4_alone : Point
        FP4's in the shortest of its codes, and in the shortest of those that take its symbols for
        independent draws.
    """

    name: str
    x: np.ndarray
    fp4: Point
    fp4_alone: Point

    @property
    def energy(self) -> float:
        """‖x‖²."""
        return float((self.x.astype(np.float64) ** 2).sum())


class Dump(NamedTuple):
    """The tensors of a file that are measured; `least` is how many values each has at least."""

    name: str
    least: int
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Values in all."""
        return sum(tensor.x.size for tensor in self.tensors)


def relative_error(x: np.ndarray, decoded: np.ndarray) -> float:
    """Return ‖x − x̂‖²/‖x‖², and 0 where there is no error."""
    wide = x.astype(np.float64)
    error = float(((wide - decoded.astype(np.float64)) ** 2).sum())
    return error and error / float((wide**2).sum() or math.nan)


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name."""
    with open_dump(path) as file:
        return {entry.name: np.asarray(file.load(entry)) for entry in file.entries}


def load(path: Path) -> Dump | None:
    """Return what is measured of a file: its large tensors, else those not quite small."""
    tensors = read(path)
    for least in (LARGE, SMALL):
        if large := {name: x for name, x in tensors.items() if x.size >= least}:
            return Dump(path.stem, least, tuple(_tensor(name, x) for name, x in large.items()))
    return None


def _tensor(name: str, x: np.ndarray) -> Tensor:
    alone = (measure(f"minifloat:code={code}", x) for code in _ALONE)
    shortest = min(alone, key=lambda point: point.nbits)
    return Tensor(name, x, measure("minifloat", x), shortest)


def files(paths: Sequence[str]) -> list[Path]:
    """Return files, and the .safetensors files of folders."""
    dump_paths: list[Path] = []
    for path in map(Path, paths):
        dump_paths += sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return dump_paths


def load_all(paths: Sequence[str]) -> list[Dump]:
    """Return what is measured of files, and of the .safetensors files of folders."""
    dumps = []
    for file in files(paths):
        if dump := load(file):
            dumps.append(dump)
        else:
            print(f"{file}: no tensor of {SMALL:,} values or more, left out", file=sys.stderr)
    return dumps


def seconds(call: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    """Return what a call returns, and the median of the processor's seconds after a first call."""
    result = call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return result, float(np.median(times)) if times else math.nan


def measure(spec: str, x: np.ndarray, rounds: int = 0) -> Point:
    """Encode and decode a tensor; time it in so many rounds."""
    frame, encode = seconds(lambda: gcodec.encode(x, spec, seed=SEED), rounds)
    decoded, decode = seconds(lambda: gcodec.decode(frame), rounds)
    return Point(relative_error(x, decoded), 8 * len(frame), encode, decode)


def curves(dials: Sequence[Dial], x: np.ndarray, rounds: int = 0) -> list[Curve]:
    """Measure all settings of a codec on a tensor."""
    return [
        Curve(tuple(measure(spec, x, rounds) for spec in dial.specs(x)), dial.between)
        for dial in dials
    ]


def at(curves: Sequence[Curve], target: float) -> Point | None:
    """Return the cheapest point of several dials with that error, or None."""
    admissible = [point for curve in curves if (point := curve.at(target)) is not None]
    return min(admissible, key=lambda point: point.nbits, default=None)


def total(tensors: Sequence[Sequence[Curve]], targets: Sequence[float]) -> Point | None:
    """Return the sums over tensors, each at its own target; None if one does not reach it."""
    points = [at(each, target) for each, target in zip(tensors, targets, strict=True)]
    reached = [point for point in points if point is not None]
    if len(reached) < len(points):
        return None
    return Point(*(sum(values) for values in zip(*reached, strict=True)))
