"""Time codecs on the tensors of a training step, and compare them with a copy of the memory."""

from __future__ import annotations

import itertools
import math
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec.advisor.links import break_even
from gcodec.advisor.machines import CodingSpeed
from gcodec.analysis import stats
from gcodec.analysis.dissect import Dissection
from gcodec.analysis.groups import omissions, selects
from gcodec.analysis.samples import Sample, doubt, draw_sample, load_sample
from gcodec.analysis.settings import Progress, Settings
from gcodec.analysis.synthetic import parse_synthetic
from gcodec.analysis.trials import joint_rms, squared_ratio
from gcodec.codec import Codec
from gcodec.errors import ParameterError
from gcodec.limits import NO_LIMITS
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Array, Entry
from gcodec.wire import primitives

_MIN_SECONDS = 2e-3  # duration of a measurement, long enough for the resolution of the clock
_QUICK_SECONDS, _QUICK_ROUNDS = 1.5, 5  # of `quick_speeds`: after either, no round begins

TIMED_VALUES = 1 << 21
"""Largest number of values of a dump on which advice and reports time codecs."""


class Timing(NamedTuple):
    """Size, error and speed of a codec on the tensors of a step, each in a frame of its own.

    Attributes
    ----------
    codec : Codec
        The codec.
    values : int
        Number of values of all tensors.
    raw_nbytes : int
        Size of all tensors.
    split : dict of str to int
        Bits of all frames, by their kind.
    error : float
        The nmse.
    encode, decode : tuple of float
        Seconds for all tensors, in each round.
    copies : tuple of float
        Seconds for a copy of all tensors, in each round.
    encode_peak, decode_peak : int
        Bytes that are allocated beside the tensors and the memory that is decoded into.
    doubt : str or None
        Reason why these tensors say little about the codec.
    """

    codec: Codec
    values: int
    raw_nbytes: int
    split: dict[str, int]
    error: float
    encode: tuple[float, ...]
    decode: tuple[float, ...]
    copies: tuple[float, ...]
    encode_peak: int
    decode_peak: int
    doubt: str | None

    @property
    def nbits(self) -> int:
        """Number of bits of all frames."""
        return sum(self.split.values())

    def rate(self, seconds: Sequence[float]) -> float:
        """Return the median over rounds of the tensors' bytes per second."""
        return self.raw_nbytes / statistics.median(seconds)

    def to_copy(self, seconds: Sequence[float]) -> float:
        """Return the median over rounds of the speed as a multiple of the speed of a copy."""
        ratios = (copy / own for copy, own in zip(self.copies, seconds, strict=True))
        return statistics.median(ratios)

    @property
    def speed(self) -> CodingSpeed:
        """Medians over rounds of the values per second."""
        encode, decode = statistics.median(self.encode), statistics.median(self.decode)
        return CodingSpeed(self.values / encode, self.values / decode)

    @property
    def pays_below(self) -> float:
        """Link speed in bits per second below which two workers gain; see `advisor.break_even`."""
        encode, decode = statistics.median(self.encode), statistics.median(self.decode)
        return 8 * break_even(self.raw_nbytes, self.nbits / 8, encode, decode)


class Stopwatch:
    """A codec that is ready to be timed.

    Parameters
    ----------
    codec : Codec
        The codec.
    samples : sequence of Sample
        Tensors to encode.
    outs : sequence of array
        Memory for decoded tensors, which several codecs may share.

    Raises
    ------
    ParameterError
        If the codec refuses a tensor.
    """

    def __init__(self, codec: Codec, samples: Sequence[Sample], outs: Sequence[Array]) -> None:
        self.codec = codec
        self._samples, self._outs = samples, outs
        self._seconds: list[list[float]] = []
        self._frames = self._encode()
        self._decode()
        self._calls = self._encode, self._decode, self._copy
        self._repetitions = [_repetitions(call) for call in self._calls]

    def _encode(self) -> list[bytes]:
        return list(map(self._encode_one, self._samples))

    def _encode_one(self, x: Sample) -> bytes:
        try:
            return gcodec.encode(x.values, self.codec, seed=x.seed, name=x.name)
        except ParameterError as error:
            raise ParameterError(f"{self.codec}: tensor {x.name!r}: {error}") from None

    def _decode(self) -> None:
        for frame, out in zip(self._frames, self._outs, strict=True):
            gcodec.decode(frame, out=out, limits=NO_LIMITS)

    def _copy(self) -> None:
        for sample, out in zip(self._samples, self._outs, strict=True):
            np.copyto(out, sample.values)

    def round(self) -> None:
        """Time encode, decode and copy once, one after the other."""
        pairs = zip(self._calls, self._repetitions, strict=True)
        self._seconds.append([_seconds(call, times) for call, times in pairs])

    def speed(self) -> CodingSpeed:
        """Return the medians over all rounds of the values per second."""
        values = sum(sample.values.size for sample in self._samples)
        encode, decode, _ = map(statistics.median, zip(*self._seconds, strict=True))
        return CodingSpeed(values / encode, values / decode)

    def timing(self) -> Timing:
        """Return the measurements of all rounds."""
        # All kernels are compiled by now, so the peaks are those of any later step.
        peaks = _peak(self._encode), _peak(self._decode)
        self._decode()
        encode, decode, copies = zip(*self._seconds, strict=True)
        pairs = list(zip(self._samples, self._outs, strict=True))
        return Timing(
            codec=self.codec,
            values=sum(sample.values.size for sample in self._samples),
            raw_nbytes=sum(sample.values.nbytes for sample in self._samples),
            split=split_bits(self._frames),
            error=squared_ratio(
                joint_rms((x.values.size, stats.rms_error(x.values, out)) for x, out in pairs),
                joint_rms((x.values.size, stats.rms_error(x.values)) for x, _ in pairs),
            ),
            encode=encode,
            decode=decode,
            copies=copies,
            encode_peak=peaks[0],
            decode_peak=peaks[1],
            doubt=doubt(self.codec, self._samples),
        )


class Step(NamedTuple):
    """Tensors of a dump that are timed.

    Attributes
    ----------
    samples : list of Sample
        The tensors.
    total : int
        Number of values of all selected tensors.
    skipped : int
        Number of selected tensors that are no floats.
    omitted : dict of str to str
        Selected tensors that the reader passes over, and the reasons.
    """

    samples: list[Sample]
    total: int
    skipped: int
    omitted: dict[str, str]


def load_step(path: Path, settings: Settings) -> Step:
    """Load the selected floating-point tensors of a dump; of a large dump, some of them.

    The coding time per value of these tensors is about that of all. They are every k-th tensor in
    the order of sizes, because a part of each tensor would spread the costs of a message over
    fewer values. Where no k gives tensors with enough and not too many values, a sample of the
    tensor that contains the middle value, in this order, takes their place.

    Parameters
    ----------
    path : pathlib.Path
        The dump.
    settings : Settings
        Settings of the measurement, whose `max_values` bounds the values of all tensors together.

    Raises
    ------
    ParameterError
        If no tensor is selected.
    FormatError, OSError
        If the file cannot be read.
    """
    max_values = settings.max_values
    with open_dump(path, limits=settings.limits) as dump:
        selected = [entry for entry in dump.entries if selects(settings.layers, entry.name)]
        floats = [entry for entry in selected if entry.dtype in primitives.FLOATS]
        entries = [entry for entry in floats if 0 not in entry.shape]
        if not entries:
            layers = settings.layers
            verdict = f"matches --layers {' '.join(layers)}" if layers else "contains values"
            raise ParameterError(f"no floating-point tensor {verdict}")
        total = sum(entry.size for entry in entries)
        share = None
        if max_values is not None and max_values < total:
            entries, share = _representative(entries, max_values), max_values
        samples = [load_sample(dump, entry, share, settings.seed) for entry in entries]
        samples = [x._replace(values=np.ascontiguousarray(x.values)) for x in samples]
        omitted = omissions(dump, settings.layers)
        return Step(samples, total, len(selected) - len(floats), omitted)


def _representative(entries: list[Entry], max_values: int) -> list[Entry]:
    """Return tensors whose sizes represent all; see `load_step`."""
    ordered = sorted(entries, key=lambda entry: entry.size)
    sizes = [entry.size for entry in ordered]
    for stride in range(2, len(ordered) + 1):
        count = sum(sizes[stride // 2 :: stride])
        if count <= max_values and 2 * stride * count >= sum(sizes):
            chosen = {entry.name for entry in ordered[stride // 2 :: stride]}
            return [entry for entry in entries if entry.name in chosen]
    sums = itertools.accumulate(sizes)
    pairs = zip(ordered, sums, strict=True)
    return [next(entry for entry, count in pairs if 2 * count >= sum(sizes))]


def draw_step(source: str, settings: Settings) -> Sample:
    """Draw one tensor; see `gcodec.analysis.synthetic.parse_synthetic`."""
    synthetic = parse_synthetic(source)
    return draw_sample(synthetic, str(synthetic), settings)


def time_codecs(
    codecs: Sequence[Codec],
    samples: Sequence[Sample],
    rounds: int,
    progress: Progress,
    refusals: list[str] | None = None,
) -> list[Timing]:
    """Time codecs in turn.

    Parameters
    ----------
    codecs : sequence of Codec
        Codecs to time.
    samples : sequence of Sample
        Tensors to encode.
    rounds : int
        Number of measurements of each codec.
    progress : Progress
        Receiver of the progress.
    refusals : list of str, optional
        Receives the errors of codecs that refuse a tensor. Without it, such an error is raised.
    """
    with progress("timing", len(codecs) * (rounds + 1)) as advance:
        stopwatches = _stopwatches(codecs, samples, advance, refusals)
        for _ in range(rounds):
            for stopwatch in stopwatches:
                stopwatch.round()
                advance(1)
    return [stopwatch.timing() for stopwatch in stopwatches]


def quick_speeds(samples: Sequence[Sample], settings: Settings) -> dict[str, CodingSpeed]:
    """Measure coding speeds in one or two seconds, except those of codecs that refuse a tensor."""
    with settings.progress("coding speeds", len(settings.codecs)) as advance:
        start = time.monotonic()
        stopwatches = _stopwatches(settings.codecs, samples, advance, [])
        for k in range(_QUICK_ROUNDS):
            if k and time.monotonic() - start > _QUICK_SECONDS:
                break
            for stopwatch in stopwatches:
                stopwatch.round()
    return {str(stopwatch.codec): stopwatch.speed() for stopwatch in stopwatches}


def _stopwatches(
    codecs: Sequence[Codec],
    samples: Sequence[Sample],
    advance: Callable[[int], object],
    refusals: list[str] | None,
) -> list[Stopwatch]:
    """Return the codecs that accept all tensors, ready to be timed; see `time_codecs`."""
    outs = [sample.values.copy() for sample in samples]
    stopwatches: list[Stopwatch] = []
    for codec in codecs:
        try:
            stopwatches.append(Stopwatch(codec, samples, outs))
        except ParameterError as error:
            if refusals is None:
                raise
            refusals.append(str(error))
        advance(1)
    return stopwatches


def split_bits(frames: Sequence[bytes]) -> dict[str, int]:
    """Count the bits of frames by their kind, as ``gcodec dissect`` does."""
    total: Counter[str] = Counter()
    for data in frames:
        dissection = Dissection(data, most=0, limits=NO_LIMITS)
        for _ in dissection:
            pass
        if dissection.error is not None:
            raise dissection.error
        total.update(dissection.totals)
    return dict(total)


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _repetitions(call: Callable[[], object]) -> int:
    """Return the number of calls that a clock can time."""
    times = 1
    while (seconds := _seconds(call, times)) * times < _MIN_SECONDS / 2:
        times *= 2
    return max(1, math.ceil(_MIN_SECONDS / seconds))


def _peak(call: Callable[[], object]) -> int:
    """Return the peak number of bytes that a call allocates."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
