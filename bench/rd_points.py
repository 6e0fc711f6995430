"""Bits and errors of settings, and interpolation of bits at an error between settings."""

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

LARGE, SMALL = 1 << 16, 1 << 12  # fewest values of a tensor
SEED = 1
_ALONE = ("none", "huffman", "pair", "planes", "rans")  # codes of minifloat without contexts


class Point(NamedTuple):
    """Measurement of a setting on a tensor.

    Attributes
    ----------
    error : float
        The nmse; 0 where x̂ = x, for a zero tensor too.
    nbits : float
        Bits of the whole frame.
    encode, decode : float
        Processor seconds; NaN if not measured.
    """

    error: float
    nbits: float
    encode: float = math.nan
    decode: float = math.nan


class Curve(NamedTuple):
    """The points of a dial on a tensor in the order of the dial."""

    points: tuple[Point, ...]
    between: bool

    def at(self, target: float) -> Point | None:
        """Return the cheapest point with at most that error, or None.

        The point is a setting whose error is no larger. If the dial is continuous, it may also lie
        between two neighbors, one at or below the target and one above it; bits are linear in the
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
    """A tensor to measure, with its own target.

    Attributes
    ----------
    name : str
        Name of the tensor.
    x : array
        Its values.
    fp4, fp4_alone : Point
        FP4 in the shortest of its codes, and in the shortest of its codes without contexts.
    """

    name: str
    x: np.ndarray
    fp4: Point
    fp4_alone: Point

    @property
    def energy(self) -> float:
        """Return ‖x‖²."""
        return float((self.x.astype(np.float64) ** 2).sum())


class Dump(NamedTuple):
    """The measured tensors of a file; `least` is the fewest values that a tensor may have."""

    name: str
    least: int
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Return the total number of values."""
        return sum(tensor.x.size for tensor in self.tensors)


def nmse_of(x: np.ndarray, decoded: np.ndarray) -> float:
    """Return the nmse ‖x − x̂‖²/‖x‖², or 0 where the tensors are equal."""
    wide = x.astype(np.float64)
    error = float(((wide - decoded.astype(np.float64)) ** 2).sum())
    return error and error / float((wide**2).sum() or math.nan)


def read(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name."""
    with open_dump(path) as file:
        return {entry.name: np.asarray(file.load(entry)) for entry in file.entries}


def load(path: Path) -> Dump | None:
    """Return the large tensors of a file or, if it has none, the moderately small ones."""
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
    """Return the given files, and the .safetensors files in the given folders."""
    dump_paths: list[Path] = []
    for path in map(Path, paths):
        dump_paths += sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return dump_paths


def load_all(paths: Sequence[str]) -> list[Dump]:
    """Load the given files, and the .safetensors files in the given folders."""
    dumps = []
    for file in files(paths):
        if dump := load(file):
            dumps.append(dump)
        else:
            print(f"{file}: no tensor of {SMALL:,} values or more, left out", file=sys.stderr)
    return dumps


def seconds(call: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    """Return the result of a call, and the median of its processor seconds after a first call."""
    result = call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return result, float(np.median(times)) if times else math.nan


def measure(spec: str, x: np.ndarray, rounds: int = 0) -> Point:
    """Encode and decode a tensor; time both in `rounds` rounds."""
    frame, encode = seconds(lambda: gcodec.encode(x, spec, seed=SEED), rounds)
    decoded, decode = seconds(lambda: gcodec.decode(frame), rounds)
    return Point(nmse_of(x, decoded), 8 * len(frame), encode, decode)


def curves(dials: Sequence[Dial], x: np.ndarray, rounds: int = 0) -> list[Curve]:
    """Measure all settings of a codec on a tensor."""
    return [
        Curve(tuple(measure(spec, x, rounds) for spec in dial.specs(x)), dial.between)
        for dial in dials
    ]


def at(curves: Sequence[Curve], target: float) -> Point | None:
    """Return the cheapest point of several dials with at most that error, or None."""
    admissible = [point for curve in curves if (point := curve.at(target)) is not None]
    return min(admissible, key=lambda point: point.nbits, default=None)


def total(tensors: Sequence[Sequence[Curve]], targets: Sequence[float]) -> Point | None:
    """Return totals over tensors, each at its own target; None if a tensor does not reach it."""
    points = [at(each, target) for each, target in zip(tensors, targets, strict=True)]
    reached = [point for point in points if point is not None]
    if len(reached) < len(points):
        return None
    return Point(*(sum(values) for values in zip(*reached, strict=True)))
