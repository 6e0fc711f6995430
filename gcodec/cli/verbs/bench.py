"""``gcodec bench``: bits, error and speed of codecs on one step's tensors."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from gcodec.cli.completion import FILE, complete_spec
from gcodec.cli.options import json_option, layers_option, limit_options, quiet_option, seed_option
from gcodec.cli.verb import Verb
from gcodec.errors import ParameterError

if TYPE_CHECKING:
    from gcodec.cli.timing import Tensor, Timed
    from gcodec.codec import Codec
    from gcodec.limits import Limits

_MOST = 1 << 24  # values
_DRAWN = "synthetic:shape=1024x1024"


@click.command(
    cls=Verb,
    name="bench",
    examples=[
        ("All codecs on a step of a training run.", "gcodec bench grads.safetensors"),
        (
            "Settings of one codec, on the weights of one layer.",
            "gcodec bench grads.safetensors -c qsgd:bucket=512 -c qsgd:bucket=512,code=auto "
            "-L 'layer3.*.weight'",
        ),
        (
            "A drawn matrix in place of a dump, by one thread.",
            "gcodec bench synthetic:shape=256x1024 --threads 1",
        ),
        (
            "A table for a report, the best error first.",
            "gcodec bench grads.safetensors -L 'layer1.*' --sort err --markdown",
        ),
    ],
)
@click.argument("source", metavar="[SOURCE]", type=FILE, default=_DRAWN)
@click.option(
    "-c",
    "--codec",
    "specs",
    multiple=True,
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Codec to time; repeatable. Default: all there are, with their default parameters.",
)
@layers_option
@click.option(
    "--sort",
    "order",
    type=click.Choice(["bits", "err", "encode", "decode", "link"]),
    help="Order of the rows: fewest bits, least error, fastest, or most worth. Default: as given.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=7,
    show_default=True,
    metavar="N",
    help="How often each call is timed; shown are medians.",
)
@click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="For tensors of more than a million values. Default: GCODEC_NUM_THREADS, or the "
    "processors there are.",
)
@click.option(
    "--sample",
    "most",
    type=click.IntRange(1),
    default=_MOST,
    show_default=True,
    metavar="N",
    help="Of a larger dump take N values, of each tensor its share.",
)
@click.option("--full", is_flag=True, help="Take all values, however many.")
@seed_option
@limit_options
@click.option("--csv", "form", flag_value="csv", help="Print comma-separated values.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a Markdown table.")
@quiet_option
@json_option
def command(
    source: str,
    specs: tuple[str, ...],
    layers: tuple[str, ...],
    order: str | None,
    rounds: int,
    threads: int | None,
    most: int,
    full: bool,
    seed: int,
    max_elems: int,
    max_bytes: int,
    form: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Time codecs on the tensors of a step.

    SOURCE is a file of tensors; or a drawn matrix with the scales and the spectrum of real
    gradients, by default synthetic:shape=1024x1024; or synthetic:gennorm with beta=, n= and seed=
    after commas: independent numbers of the generalised normal distribution (beta 2: normal, 1:
    Laplace). Codecs that cannot be judged on these values are named. Every tensor is encoded to a
    frame of its own, as in a training step, and decoded into memory that is there already.

    bits/v are measured: all bytes of all frames. The error is ||x - decoded||^2 / ||x||^2. GB/s
    count the bytes of the tensors; beside them is the ratio to a memcpy of the same tensors, where
    1 is as fast. Every round times encode, decode and memcpy of each codec, one behind the other,
    after all of them have run; each number is a median over rounds, the ratios too. Peak is the
    memory that encode or decode takes at most beside the tensors, as Python counts it. Below the
    speed of "pays", in Gbit/s, it is quicker to encode, send and decode a step than to send it as
    it is, if nothing else goes on meanwhile.
    """
    from gcodec.cli.render.bench_report import BenchReport
    from gcodec.limits import Limits

    if as_json and form:
        raise click.UsageError(f"--json and --{form} are two forms: pass one of them.")
    codecs, notes = _codecs(specs), list[str]()
    limits = Limits(max_elems, max_bytes)
    tensors = _tensors(source, layers, None if full else most, seed, limits, notes)
    with _environment("GCODEC_NUM_THREADS", threads):
        timed = _timed(codecs, tensors, rounds, seed, quiet, notes if not specs else None)
        report = BenchReport(source, tensors, _sorted(timed, order), rounds, notes)
        report.show("json" if as_json else form, quiet)
    return 0


@contextlib.contextmanager
def _environment(name: str, value: int | None) -> Iterator[None]:
    """Set a variable of the environment for a while, unless it is None."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = str(value)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif value is not None:
            del os.environ[name]


def _codecs(specs: tuple[str, ...]) -> list[Codec]:
    from gcodec.codec import registered
    from gcodec.codecs import parse

    names = registered() if not specs else dict.fromkeys(specs)
    return [parse(spec) for spec in names]


def _tensors(
    source: str,
    layers: tuple[str, ...],
    most: int | None,
    seed: int,
    limits: Limits,
    notes: list[str],
) -> list[Tensor]:
    """Draw or load what is to be encoded, and note what is not as it was."""
    from gcodec.analysis.doubts import Origin
    from gcodec.analysis.synthetic import parse_synthetic
    from gcodec.cli.timing import Tensor

    if not source.startswith("synthetic:"):
        return _loaded(source, layers, most, seed, limits, notes)
    if layers:
        raise ParameterError("--layers: synthetic values have none")
    drawn = parse_synthetic(source)
    limits.check("the tensor", drawn.count(), 4 * drawn.count())
    values = drawn.draw()
    origin = Origin.INDEPENDENT if values.ndim < 2 else Origin.MATRIX
    return [Tensor(str(drawn), values, origin)]


def _loaded(
    source: str,
    layers: tuple[str, ...],
    most: int | None,
    seed: int,
    limits: Limits,
    notes: list[str],
) -> list[Tensor]:
    """Load the tensors of a dump, or of each its share."""
    import numpy as np

    from gcodec.analysis import stats
    from gcodec.analysis.doubts import Origin
    from gcodec.cli import inputs
    from gcodec.cli.options import selects
    from gcodec.cli.text import count
    from gcodec.cli.timing import Tensor
    from gcodec.feedback import derive_seed
    from gcodec.tensorfiles.dumps import open_dump
    from gcodec.wire import primitives

    paths = inputs.files([source], "dump", lambda path: not inputs.is_frames(path))
    if len(paths) > 1 or inputs.is_frames(paths[0]):
        raise ParameterError(
            f"{source}: must be one file of tensors, or synthetic:shape=ROWSxCOLUMNS"
        )
    with open_dump(paths[0], limits=limits) as dump:
        floats = [entry for entry in dump.entries if entry.dtype in primitives.FLOATS]
        chosen = [e for e in floats if selects(layers, e.name) and 0 not in e.shape]
        if not chosen:
            raise ParameterError(f"{source}: no tensor of floats that --layers takes")
        total = sum(math.prod(entry.shape) for entry in chosen)
        if len(floats) < len(dump.entries):
            left_out = count(len(dump.entries) - len(floats), "tensor")
            notes.append(f"{left_out} of other dtypes than codecs take: left out")
        if most is not None and most < total:
            notes.append(f"measured on a sample of {most:,} of {total:,} values; --full takes all")
        tensors, nonfinite = [], 0
        for entry in chosen:
            values = dump.load(entry)
            if most is not None and most < total:
                share = max(1, values.size * most // total)
                values = stats.sample(values, share, derive_seed(seed, name=entry.name))
            found, _ = stats.find_nonfinite(values)
            if found:
                values = np.where(np.isfinite(values), values, np.zeros((), values.dtype))
                nonfinite += found
            origin = Origin.of_sample(entry.shape, values.size, values.ndim)
            tensors.append(Tensor(entry.name, np.ascontiguousarray(values), origin))
        if nonfinite:
            notes.append(f"{count(nonfinite, 'value')} NaN or Inf: taken as 0")
        return tensors


def _timed(
    codecs: list[Codec],
    tensors: list[Tensor],
    rounds: int,
    seed: int,
    quiet: bool,
    notes: list[str] | None,
) -> list[Timed]:
    """Time codecs in turn; note those that refuse a tensor, or raise where there are no notes."""
    from gcodec.cli.progress import progress
    from gcodec.cli.timing import Bench

    outs = [tensor.values.copy() for tensor in tensors]
    benches: list[Bench] = []
    with progress("timing", len(codecs) * (rounds + 1), quiet=quiet) as advance:
        for codec in codecs:
            try:
                benches.append(Bench(codec, tensors, outs, seed))
            except ParameterError as error:
                if notes is None:
                    raise
                notes.append(f"left out: {error}")
            advance(1)
        for _ in range(rounds):
            for bench in benches:
                bench.round()
                advance(1)
    return [bench.timed() for bench in benches]


def _sorted(timed: list[Timed], order: str | None) -> list[Timed]:
    from statistics import median

    keys: dict[str, Callable[[Timed], float]] = {
        "bits": lambda one: one.nbits,
        "err": lambda one: one.error,
        "encode": lambda one: median(one.encode),
        "decode": lambda one: median(one.decode),
        "link": lambda one: -one.pays_below,
    }
    return timed if order is None else sorted(timed, key=keys[order])
