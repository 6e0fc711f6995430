"""``gcodec inspect``: show the contents of a file of gradients, and the effect of codecs on it."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gcodec.analysis.settings import Settings
from gcodec.cli import options
from gcodec.errors import ParameterError

if TYPE_CHECKING:
    from gcodec.analysis.steps import RunStats
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render.frames import FrameView
    from gcodec.cli.render.inspect import DumpView

_SAMPLE = 65_536
_NMSE = 0.01


@options.verb(
    "inspect",
    ("Show the contents of a dump.", "gcodec inspect grads.safetensors"),
    (
        "Find the smallest codec for each tensor that loses at most 1 % of the energy.",
        "gcodec inspect grads.safetensors --max-nmse 0.01",
    ),
    (
        "Show the ten largest tensors, and the effect of two codecs.",
        "gcodec inspect grads.safetensors --sort size --top 10 -c topk -c qsgd:bucket=512",
    ),
    (
        "Measure all values of the biases of all dumps of a run, as JSON.",
        "gcodec inspect run/ -L '*.bias' --full --json",
    ),
    (
        "Show how the tensors of a run change from step to step, and draw it.",
        "gcodec inspect run/ --over-steps --plot run.svg",
    ),
    ("Show the sizes of encoded tensors.", "gcodec inspect grads.gcf"),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=options.FILE)
@click.option(
    "--max-nmse",
    "--max-err",
    "max_nmse",
    type=options.Number(0, min_open=True),
    metavar="E",
    help="Find the smallest codec whose nmse ||x - decoded||^2 / ||x||^2 is at most E.",
)
@click.option(
    "--max-bits",
    type=options.Number(0, min_open=True),
    metavar="B",
    help="Find the codec of least nmse with at most B bits per value, headers included.",
)
@options.codecs("Show the effect of this codec on every tensor; repeatable.")
@options.layers
@click.option(
    "--sort",
    "order",
    type=options.Order(["size", "bits", "nmse", "name"]),
    help="Order of the rows: most values, most bits per value or largest nmse of the first "
    f"codec or of the best one (by default for --max-nmse {_NMSE}), or name. Default: as in the "
    "file.",
)
@options.top
@click.option("--each", is_flag=True, help="Show a row for each tensor, also of repeated blocks.")
@options.sample(
    _SAMPLE,
    "Measure distributions and codecs on N values of larger tensors, drawn by --seed. Counts, rms "
    "and the largest magnitude are those of all values.",
)
@click.option("--full", is_flag=True, help="Measure everything on all values.")
@options.seed
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE.html",
    help="Write a page with diagrams and without scripts; this replaces an existing file. Needs "
    "matplotlib: pip install 'gcodec[report]'.",
)
@click.option(
    "--over-steps",
    is_flag=True,
    help="Show one table of all files, the dumps of a run: how the norm, the entropy at the error "
    "of --max-nmse, the rank of matrices and the share of zeros change from step to step.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw the table of --over-steps to an .svg or .png file; this replaces an existing file. "
    "Needs matplotlib: pip install 'gcodec[report]'.",
)
@options.limits
@options.jsonl
@options.csv
@options.markdown
@click.option(
    "--width",
    type=options.Integer(20),
    metavar="N",
    help="Width of the table. Default: that of the terminal; in a pipe, the necessary width.",
)
@click.option(
    "--no-color", is_flag=True, help="Print no colors, as with NO_COLOR in the environment."
)
@options.quiet
@options.json
@options.form
@options.settings
def command(
    files: tuple[str, ...],
    max_nmse: float | None,
    max_bits: float | None,
    specs: tuple[str, ...],
    order: str | None,
    top: int | None,
    each: bool,
    settings: Settings,
    report: str | None,
    over_steps: bool,
    plot: str | None,
    form: str | None,
    width: int | None,
    no_color: bool,
    quiet: bool,
) -> int:
    """Show the contents of gradient files, and the effect of codecs.

    FILE is a .safetensors, .npz, .npy or .pt file, a .gcf file, a folder of
    torch.distributed.checkpoint, a directory of such files, or a glob; - is stdin, whose format
    follows from its first bytes.

    For every tensor of a dump, gcodec shows the number of values, their distribution (from -4 to 4
    times their rms, counts on a logarithmic scale), and the entropy of a uniform quantizer with
    the nmse of --max-nmse, in bits per value. The best fit is the normal, Laplace or generalized
    normal distribution that is nearest to the nonzero values, with its shape (2, 1 or any) and its
    2-Wasserstein distance as a multiple of the rms.

    For each codec, gcodec shows the measured bits per value and nmse. Bits per value count whole
    frames: for a few values, headers and checksums can outweigh the payload, and raw can be the
    smallest codec. Tensors of repeated blocks, whose names differ in a number between dots, share
    a row, which shows medians of the fit, and a codec that is within the budget for each of them.

    With --over-steps, the files are the dumps of a run, one for each step. gcodec takes the number
    of the step from the metadata, or from the name of the file or of its folder. The rank is the
    number of singular values that contain 99 % of the energy of a matrix.

    For every frame of a .gcf file, gcodec shows the size of its parts. It reads only headers and
    tries no codecs, whatever the options; gcodec verify checks the payloads.
    """
    from gcodec.cli.render.output import progress, stdout

    quiet_progress = quiet or form is not None
    with progress("loading gcodec", None, quiet=quiet_progress):
        from gcodec.analysis.candidates import Budget
        from gcodec.cli.files import inputs, is_dump, is_frames, local_file
        from gcodec.cli.outcome import Outcome
        from gcodec.cli.render.inspect import DumpView
        from gcodec.cli.render.output import print_views
        from gcodec.cli.render.steps import StepsView
        from gcodec.cli.render.text import titles
        from gcodec.codecs import parse_encoder

    tries_codecs = bool(specs) or max_bits is not None or order == "nmse"
    _check_options(report, plot, over_steps, tries_codecs)
    if over_steps:
        paths = inputs(files, "dump", is_dump, stdin=True)
    else:
        paths = inputs(files, stdin=True)
    for option, target in (("--report", report), ("--plot", plot)):
        if target is not None:
            _prepare_output(option, target)
    if report is not None or over_steps:
        _check_dumps("--over-steps" if over_steps else "--report", paths)
    needs_best = report is not None or (order in ("bits", "nmse") and not specs)
    budget = None
    if not over_steps and (needs_best or max_nmse is not None or max_bits is not None):
        default = _NMSE if max_bits is None else None
        budget = Budget(default if max_nmse is None else max_nmse, max_bits)
    settings = settings._replace(
        codecs=tuple(parse_encoder(spec) for spec in dict.fromkeys(specs)),
        budget=budget,
        error=_NMSE if max_nmse is None else max_nmse,
        progress=partial(progress, quiet=quiet_progress),
        keep_pictures=report is not None,
    )
    outcome = Outcome("inspect", settings.limits, quiet=quiet)
    console = stdout(width, color=not no_color)
    if over_steps:
        run = _measure_run(paths, settings, outcome)
        steps = StepsView(run, settings, each=each, width=console.width)
        steps.sort(order)
        if form is not None:
            shown = [steps] if run.steps else []
            print_views(form, "inspect.steps", steps.document(), shown, top, outcome)
        elif run.steps:
            steps.show(console, top, quiet)
        if plot is not None and run.steps:
            steps.draw(plot, top, quiet)
            outcome.line(f"wrote {plot}", err=True)
        return outcome.code
    views: list[DumpView | FrameView] = []
    for path, title in zip(paths, titles(paths), strict=True):
        with (
            outcome.of(path),
            local_file(path) as file,
            outcome.of(path, in_frames=is_frames(file)),
        ):
            view = _view(path, title, file, settings, each)
            view.sort(order)
            if not form:
                if views:
                    click.echo()
                view.show(console, top, quiet)
            views.append(view)
    if form is not None:
        document = {"files": [view.document() for view in views]}
        print_views(form, "inspect", document, views, top, outcome)
    if report is not None and views:
        from gcodec.cli.render.report import write_report

        arrangement = ["--each"] * each + ([] if order is None else ["--sort", order])
        dumps = [view for view in views if isinstance(view, DumpView)]
        write_report(report, dumps, files, arrangement)
        outcome.line(f"wrote {report}", err=True)
    return outcome.code


def _check_options(
    report: str | None, plot: str | None, over_steps: bool, tries_codecs: bool
) -> None:
    """Raise `click.UsageError` for options that exclude each other, or names of other formats."""
    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise click.UsageError("--report must name a file that ends in .html.")
    if plot is not None and not (over_steps and plot.lower().endswith((".svg", ".png"))):
        raise click.UsageError("--plot needs --over-steps, and a file that ends in .svg or .png.")
    if over_steps and (tries_codecs or report is not None):
        raise click.UsageError(
            "--over-steps tries no codecs, so it excludes --codec, --max-bits, --report and "
            "--sort nmse."
        )


def _check_dumps(option: str, paths: list[Path]) -> None:
    """Refuse frames and stdin before anything is measured."""
    from gcodec.cli.files import STREAM, is_frames

    if STREAM in paths:
        raise ParameterError(f"{option}: needs files, and - is none")
    if frames := [str(path) for path in paths if is_frames(path)]:
        raise ParameterError(f"{option}: {frames[0]} contains frames; gcodec decode makes a dump")


def _prepare_output(option: str, target: str) -> None:
    """Make the folder of a file with diagrams, or refuse to draw, before anything is measured."""
    from gcodec.cli.render.figures import require_matplotlib

    try:
        require_matplotlib()
    except ImportError as error:
        raise ParameterError(f"{option}: {error}") from None
    folder = Path(target).parent
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)


def _measure_run(paths: list[Path], settings: Settings, outcome: Outcome) -> RunStats:
    """Measure the readable dumps of a run, in the order of its steps."""
    from gcodec.analysis.steps import RunStats, measure_step, read_metadata, steps_of

    metadata = {}
    for path in paths:
        with outcome.of(path):
            metadata[path] = read_metadata(path, settings.limits)
    steps = steps_of(metadata)
    run = RunStats([], [], [])
    for path in sorted(steps, key=lambda path: steps[path]):
        with outcome.of(path):
            run.points.append(measure_step(path, settings))
            run.paths.append(path)
            run.steps.append(steps[path])
    if run.steps and settings.layers and not any(run.points):
        raise ParameterError(f"no gradient matches --layers {' '.join(settings.layers)}")
    return run


def _view(
    path: Path, title: str, file: Path, settings: Settings, each: bool
) -> DumpView | FrameView:
    """Measure a dump, or list the frames of a file; `path` is its name for the user."""
    from gcodec.analysis.groups import selects
    from gcodec.cli.files import is_frames
    from gcodec.cli.render.frames import FrameView
    from gcodec.cli.render.inspect import DumpView
    from gcodec.tensorfiles.frame_list import list_frames, mapped

    if not is_frames(file):
        with settings.progress("loading SciPy", None):
            from gcodec.analysis.measure import measure

        return DumpView(
            measure(file, settings)._replace(path=path), settings, title=title, each=each
        )
    layers = settings.layers
    data = mapped(file)
    headers = list_frames(data, settings.limits)
    frames = [header for header in headers if selects(layers, header.name or "")]
    if not frames:
        raise ParameterError(f"no frame matches --layers {' '.join(layers)}")
    tries_codecs = bool(settings.codecs) or settings.budget is not None
    return FrameView(path, title, len(data), frames, tries_codecs)
