"""Show that ``gcodec bench``, the report and ``gcodec advise`` agree on break-even links.

``python -m bench.break_even [DUMP]`` times codecs once, all in turn in several rounds, and hands
the fastest encode and decode of each to the three programs in place of their own clocks, because
the speed of a shared machine changes between two runs. The table shows the link in Gbit/s below
which each of them says that a codec pays, and the largest of the three over the smallest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from click.testing import CliRunner

import gcodec
from bench.bits import EXAMPLE
from gcodec.analysis import timing
from gcodec.analysis.advice import MeasuredCodec
from gcodec.analysis.diagrams import measure_links
from gcodec.analysis.settings import Settings
from gcodec.analysis.timing import TIMED_VALUES, load_step, time_codecs
from gcodec.cli.main import cli
from gcodec.codec import Codec

SPECS = (
    *("sign", "mxnet-2bit:threshold=auto", "minmax:bits=4", "topk:ratio=0.02"),
    *("qsgd:bucket=512", "minifloat", "ecsq"),
)
_SETTINGS = Settings()


class Seconds(NamedTuple):
    """Seconds that a codec takes for a value of the tensors, and that a copy takes."""

    encode: float
    decode: float
    copy: float


class BreakEven(NamedTuple):
    """Links in bits per second below which a codec pays, by the program that says so."""

    codec: str
    bench: float
    report: float
    advise: float

    @property
    def spread(self) -> float:
        """Ratio of the largest to the smallest link."""
        links = self[1:]
        return max(links) / min(links) if min(links) > 0 else math.inf


def measure(path: Path, codecs: Sequence[Codec], rounds: int) -> dict[Codec, Seconds]:
    """Time codecs in turn, and return the fastest of `rounds` measurements of each."""
    samples = load_step(path, Settings(max_values=TIMED_VALUES)).samples
    timings = time_codecs(codecs, samples, rounds, _SETTINGS.progress)
    return {
        t.codec: Seconds(*(min(rounds) / t.values for rounds in (t.encode, t.decode, t.copies)))
        for t in timings
    }


@contextlib.contextmanager
def replayed(measured: Mapping[Codec, Seconds]) -> Iterator[None]:
    """Replace the clock of all measurements of codecs by these seconds."""

    def seconds(call: Callable[[], object], times: int) -> float:
        stopwatch: Any = call.__self__  # type: ignore[attr-defined]
        values = sum(sample.values.size for sample in stopwatch._samples)
        return values * float(getattr(measured[stopwatch.codec], call.__name__.removeprefix("_")))

    with mock.patch.object(timing, "_seconds", seconds):
        yield


def break_evens(path: Path, measured: Mapping[Codec, Seconds]) -> list[BreakEven]:
    """Return what the three programs derive from the same seconds."""
    words = [word for codec in measured for word in ("-c", str(codec))]
    cluster = ("--step-time", "1ms", "--nodes", "2", "--between", "1Gbit/s")
    # Fewer bits and larger errors, so that all codecs are on the front that a report times.
    points = [MeasuredCodec(codec, k, 0.5 / (k + 1)) for k, codec in enumerate(measured)]
    with replayed(measured):
        bench = _links("bench", str(path), *words)
        advise = _links("advise", str(path), *words, *cluster)
        timings, _ = measure_links(path, points, _SETTINGS)
    report = {str(timing.codec): timing.pays_below for timing in timings}
    return [BreakEven(spec, bench[spec], report[spec], advise[spec]) for spec in bench]


def _links(*words: str) -> dict[str, float]:
    """Run a verb of the command; return its break-even link for each codec."""
    result = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    codecs = json.loads(result.stdout)["codecs"]
    return {entry["codec"]: entry["pays_below_bits_per_second"] for entry in codecs}


def lines(rows: Sequence[BreakEven]) -> Iterator[str]:
    """Yield the table, in Gbit/s."""
    yield "| codec | `bench` | report | `advise` | largest ÷ smallest |"
    yield "|---|---:|---:|---:|---:|"
    for row in rows:
        links = " | ".join(f"{link / 1e9:.3g}" for link in row[1:])
        yield f"| `{row.codec}` | {links} | {row.spread:.2f} |"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.break_even", description=__doc__)
    parser.add_argument("dump", nargs="?", type=Path, default=EXAMPLE, help="file of gradients")
    parser.add_argument("-c", "--codec", action="append", help="codec to time; repeatable")
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds")
    parsed = parser.parse_args()
    codecs = [gcodec.parse(spec) for spec in parsed.codec or SPECS]
    rows = break_evens(parsed.dump, measure(parsed.dump, codecs, parsed.rounds))
    print(*lines(rows), sep="\n")


if __name__ == "__main__":
    main()
