"""What codecs make of a whole gradient: bits per value, error, and what their laws promise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec.advisor import Law, law_of
from gcodec.analysis import stats
from gcodec.analysis.doubts import Origin, doubt
from gcodec.analysis.synthetic import parse_synthetic
from gcodec.cli.options import selects
from gcodec.cli.progress import progress
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.limits import Limits
from gcodec.tensorfiles.dumps import open_dump
from gcodec.wire import primitives

RMS = 1e-3
"""Root mean square of values that are made up: about that of gradients of a mean loss."""


class Tensor(NamedTuple):
    """A tensor that stands for `size` values, of which `values` are some or all."""

    name: str
    size: int
    values: stats.Values
    origin: Origin


class Measured(NamedTuple):
    """What a codec makes of a gradient.

    Attributes
    ----------
    codec : Codec
    bits : float
        Per value, of whole frames.
    error : float
        ‖x − x̂‖²/‖x‖².
    law : Law
        For tensors of these sizes.
    problem : str or None
        Why there is none of the above.
    doubt : str or None
        Why the codec cannot be judged on the values that were measured.
    """

    codec: Codec
    bits: float
    error: float
    law: Law
    problem: str | None = None
    doubt: str | None = None


class Source(NamedTuple):
    """Where the measured values come from.

    Attributes
    ----------
    name : str
        What to call it.
    values : int
        Of the whole gradient.
    bits : float
        Of one of them, uncompressed.
    left_out : int
        Tensors that are no gradients.
    """

    name: str
    values: int
    bits: float
    left_out: int = 0


class Tally:
    """Adds up what a codec makes of tensors.

    Parameters
    ----------
    codec : Codec
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._sizes: list[int] = []
        self._bits: list[float] = []
        self._errors: list[float] = []  # roots of the sums of squares
        self._signals: list[float] = []
        self._problem: str | None = None
        self._doubt: str | None = None

    def add(self, tensor: Tensor, seed: int) -> None:
        """Measure one tensor of at least one value."""
        x = tensor.values
        try:
            frame = gcodec.encode(x, self._codec, seed=seed, name=tensor.name)
        except ParameterError as error:
            self._problem = self._problem or f"{tensor.name}: {error}"
            return
        # A frame that was made here needs no protection from itself.
        decoded = gcodec.decode(frame, limits=Limits(1 << 62, 1 << 62))
        self._doubt = self._doubt or doubt(self._codec, tensor.origin)
        root = math.sqrt(tensor.size)
        self._sizes.append(tensor.size)
        self._bits.append(8 * len(frame) / x.size * tensor.size)
        self._errors.append(root * stats.rms_error(x, decoded))
        self._signals.append(root * stats.rms_error(x))

    def measured(self) -> Measured:
        """Return the result."""
        if self._problem is not None or not self._sizes:
            return Measured(self._codec, math.nan, math.nan, Law(None, None), self._problem)
        error, signal = math.hypot(*self._errors), math.hypot(*self._signals)
        nmse = (error / signal) ** 2 if signal else (math.inf if error else 0.0)
        law = law_of(self._codec, self._sizes)
        bits = math.fsum(self._bits) / sum(self._sizes)
        return Measured(self._codec, bits, nmse, law, doubt=self._doubt)


def of_dump(
    path: Path,
    codecs: Iterable[Codec],
    layers: tuple[str, ...],
    most: int,
    seed: int,
    limits: Limits,
    *,
    quiet: bool,
) -> tuple[Source, list[Measured]]:
    """Measure codecs on a dump, one tensor in memory at a time.

    Parameters
    ----------
    path : pathlib.Path
    codecs : iterable of Codec
    layers : tuple of str
        Globs; see `gcodec.cli.options.selects`.
    most : int
        Values of a tensor to measure.
    seed : int
    limits : Limits
    quiet : bool
        Whether to show no progress.

    Raises
    ------
    ParameterError
        If there are no values to measure.
    FormatError, OSError
        If the file cannot be read.
    """
    tallies = [Tally(codec) for codec in codecs]
    with open_dump(path, limits=limits) as dump:
        entries = [entry for entry in dump.entries if selects(layers, entry.name)]
        floats = [entry for entry in entries if entry.dtype in primitives.FLOATS]
        sizes = [math.prod(entry.shape) for entry in floats]
        if not sum(sizes):
            raise ParameterError(f"{path}: there are no values of a gradient to measure here")
        bits = [8 * primitives.ITEMSIZE[entry.dtype] for entry in floats]
        with progress(path.name, sum(sizes), quiet=quiet) as advance:
            for entry, size in zip(floats, sizes, strict=True):
                if size:
                    own = derive_seed(seed, name=entry.name)
                    values = dump.load(entry)
                    if size > most:
                        values = stats.sample(values, most, own)
                    origin = Origin.of_sample(entry.shape, values.size, values.ndim)
                    tensor = Tensor(entry.name, size, _finite(values), origin)
                    for tally in tallies:
                        tally.add(tensor, own)
                advance(size)
    mean = math.fsum(n * width for n, width in zip(sizes, bits, strict=True)) / sum(sizes)
    source = Source(path.name, sum(sizes), mean, len(entries) - len(floats))
    return source, [tally.measured() for tally in tallies]


def of_synthetic(
    text: str, codecs: Iterable[Codec], seed: int, *, quiet: bool
) -> tuple[Source, list[Measured]]:
    """Measure codecs on values of a distribution, with the root mean square `RMS`.

    Parameters
    ----------
    text : str
        See `gcodec.analysis.synthetic.parse_synthetic`.
    codecs : iterable of Codec
    seed : int
    quiet : bool
        Whether to show no progress.

    Raises
    ------
    ParameterError
    """
    x = parse_synthetic(text).draw()
    rms = stats.rms_error(x)
    if rms:
        x *= np.float32(RMS / rms)
    origin = Origin.INDEPENDENT if x.ndim < 2 else Origin.MATRIX
    tensor = Tensor("synthetic", x.size, x, origin)
    known = list(codecs)
    found = []
    with progress("synthetic", len(known), quiet=quiet) as advance:
        for codec in known:
            tally = Tally(codec)
            tally.add(tensor, derive_seed(seed, name=tensor.name))
            found.append(tally.measured())
            advance(1)
    return Source(f"{text}, of rms {RMS:g}", x.size, 32), found


def _finite(values: stats.Values) -> stats.Values:
    return np.where(np.isfinite(values), values, np.zeros((), values.dtype))
