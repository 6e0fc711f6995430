"""``gcodec bench``: measure size, nmse and speed of codecs on the tensors of a training step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from gcodec.analysis.settings import Settings
from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.cli.render.text import count
from gcodec.errors import ParameterError

if TYPE_CHECKING:
    from gcodec.analysis.timing import Timing

_SAMPLE = 1 << 24
_SOURCE = "synthetic:shape=1024x1024"
_ORDERS: dict[str, Callable[[Timing], float]] = {
    "bits": lambda timing: timing.nbits,
    "nmse": lambda timing: timing.error,
    "encode": lambda timing: -timing.rate(timing.encode),
    "decode": lambda timing: -timing.rate(timing.decode),
    "link": lambda timing: -timing.pays_below,
}


@options.verb(
    "bench",
    ("Time all codecs on a step of a training run.", "gcodec bench grads.safetensors"),
    (
        "Compare settings of one codec on the weights of one layer.",
        "gcodec bench grads.safetensors -c qsgd:bucket=512 -c qsgd:bucket=512,code=auto "
        "-L 'layer3.*.weight'",
    ),
    (
        "Use a synthetic matrix in place of a dump, and one thread.",
        "gcodec bench synthetic:shape=256x1024 --threads 1",
    ),
    (
        "Print a Markdown table, the smallest nmse first.",
        "gcodec bench grads.safetensors -L 'layer1.*' --sort nmse --markdown",
    ),
    (
        "Print the rows of a machine for the table that gcodec advise --machine reads.",
        "gcodec bench synthetic:shape=256x1024 --threads 1 --machine my-node",
    ),
)
@click.argument("source", metavar="[SOURCE]", type=options.FILE, default=_SOURCE)
@options.codecs("Codec to time; repeatable. Default: all codecs, with their default parameters.")
@options.layers
@click.option(
    "--sort",
    "order",
    type=options.Order(list(_ORDERS)),
    help="Order of the rows: fewest bits, least nmse, fastest encoding or decoding, or fastest "
    "link on which the codec pays. Default: the order of the options.",
)
@click.option(
    "--rounds",
    type=options.Integer(1, 1000),
    default=7,
    metavar="N",
    help="Number of measurements of each call; the table shows medians.",
)
@click.option(
    "-t",
    "--threads",
    type=options.Integer(1, 1024),
    metavar="N",
    help="Number of threads for tensors of more than two million values. Default: "
    "GCODEC_NUM_THREADS, or the number of processors.",
)
@options.sample(_SAMPLE, "Measure at most N values of a larger dump: some of its tensors, or one.")
@click.option("--full", is_flag=True, help="Measure all values.")
@options.seed
@options.limits
@click.option(
    "--machine",
    metavar="NAME",
    help="Print the coding speeds as rows of gcodec/advisor/machines.csv under this name.",
)
@options.csv
@options.markdown
@options.quiet
@options.json
@options.form
@options.settings
def command(
    source: str,
    specs: tuple[str, ...],
    order: str | None,
    rounds: int,
    threads: int | None,
    settings: Settings,
    machine: str | None,
    form: str | None,
    quiet: bool,
) -> int:
    """Time codecs on the tensors of a training step.

    SOURCE is a file of tensors, or one of two kinds of synthetic values.
    synthetic:shape=1024x1024, the default, is a matrix with the scales and the spectrum of real
    gradients. synthetic:gennorm,beta=0.8,n=1000000,seed=0 draws independent values of the
    generalized normal distribution (beta 2: normal, 1: Laplace). The output names codecs that
    these values cannot judge. As in a training step, each tensor is encoded to its own frame, and
    decoded into existing memory.

    bits/v counts all bytes of all frames. The nmse is ||x - decoded||^2 / ||x||^2. GB/s counts
    the bytes of the tensors; the next column is the ratio to the speed of a memcpy of the same
    tensors. After a first run of all codecs, each round times encode, decode and memcpy of each
    codec in turn. All numbers are medians over rounds. Peak is the memory that encode or decode
    allocates beside the tensors, as Python counts it.

    "Pays below" is a link speed in Gbit/s, for two workers that exchange gradients without
    overlap. On a slower link, a worker takes less time to encode a step, send it and decode both
    messages than to send and add up the tensors.
    """
    from gcodec.analysis.timing import draw_step, load_step, time_codecs
    from gcodec.cli.files import one_dump
    from gcodec.cli.render.bench import BenchView
    from gcodec.cli.render.output import note, omission_notes, progress, stdout
    from gcodec.codec import registered
    from gcodec.codecs import parse_encoder

    if machine is not None and form is not None:
        raise click.UsageError(f"--machine and --{form} exclude each other: pass one of them.")
    codecs = [parse_encoder(spec) for spec in (dict.fromkeys(specs) if specs else registered())]
    notes, refusals = list[str](), list[str]()
    if source.startswith("synthetic:"):
        if settings.layers:
            raise ParameterError("--layers: synthetic values have no layers")
        samples = [draw_step(source, settings)]
    else:
        path = one_dump(source)
        outcome = Outcome("bench", settings.limits, as_json=form == "json")
        with outcome.of(path):
            step = load_step(path, settings)
        if outcome.code:
            return outcome.finish({"source": source, "codecs": []})
        samples = step.samples
        if step.skipped:
            tensors = count(step.skipped, "tensor")
            notes.append(f"skipped {tensors} of dtypes that codecs do not take")
        notes += omission_notes(step.omitted)
        measured = sum(sample.values.size for sample in samples)
        if measured < step.total:
            part = f"{measured:,} of {step.total:,} values in {count(len(samples), 'tensor')}"
            notes.append(f"measured on {part}; --full takes all")
        if nonfinite := sum(sample.nonfinite for sample in samples):
            notes.append(f"{count(nonfinite, 'value')} NaN or Inf: taken as 0")
    with _environment("GCODEC_NUM_THREADS", threads):
        # A codec that is named must accept all tensors.
        timings = time_codecs(
            codecs,
            samples,
            rounds,
            partial(progress, quiet=quiet),
            None if specs else refusals,
        )
        notes += [f"skipped: {refusal}" for refusal in refusals]
        if order is not None:
            timings.sort(key=_ORDERS[order])
        view = BenchView(source, samples, timings, rounds, notes)
        if machine is not None:
            view.print_machine(machine)
        elif form is not None:
            view.print_form(form)
        else:
            view.show(stdout(), None, quiet)
            return 0
        for line in [] if quiet else notes:
            note(line)
    return 0


@contextlib.contextmanager
def _environment(name: str, value: int | None) -> Iterator[None]:
    """Set an environment variable for a while, unless the value is None."""
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
