"""``gcodec inspect``: what is in a file of gradients, and what codecs would make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from gcodec.cli.completion import FILE, complete_spec
from gcodec.cli.options import (
    Number,
    json_option,
    layers_option,
    limit_options,
    quiet_option,
    seed_option,
)
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.cli.measure import Task
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render.dump_report import DumpReport
    from gcodec.cli.render.frame_report import FrameReport

_SAMPLE = 65_536
_ERROR = 0.01


@click.command(
    cls=Verb,
    name="inspect",
    examples=[
        ("See what is in a dump.", "gcodec inspect grads.safetensors"),
        (
            "The codec of fewest bits for each tensor, if a percent of the energy may be lost.",
            "gcodec inspect grads.safetensors --max-err 0.01",
        ),
        (
            "The ten largest tensors, with codecs of your own choice.",
            "gcodec inspect grads.safetensors --sort size --top 10 -c topk -c qsgd:bucket=512",
        ),
        (
            "All values of the biases of all dumps of a run, as JSON.",
            "gcodec inspect run/ -L '*.bias' --full --json",
        ),
        ("Where the bytes of encoded tensors go.", "gcodec inspect grads.gcf"),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.option(
    "--max-err",
    type=Number(0, min_open=True),
    metavar="E",
    help="Find the codec of fewest bits whose error ||x - decoded||^2 / ||x||^2 is at most E.",
)
@click.option(
    "--max-bits",
    type=Number(0, min_open=True),
    metavar="B",
    help="Find the codec of least error with at most B bits per value, headers included.",
)
@click.option(
    "-c",
    "--codec",
    "specs",
    multiple=True,
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Show what this codec makes of every tensor; repeatable.",
)
@layers_option
@click.option(
    "--sort",
    "order",
    type=click.Choice(["size", "bits", "err", "name"]),
    help="Order of the rows: most values, most bits per value or largest error of the first "
    f"codec or of the best (without either: for --max-err {_ERROR}), or name. Default: as in the "
    "file.",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", help="Only the first N rows of the table."
)
@click.option("--each", is_flag=True, help="A row for each tensor, also of repeated blocks.")
@click.option(
    "--sample",
    "most",
    type=click.IntRange(1),
    default=_SAMPLE,
    show_default=True,
    metavar="N",
    help="Distributions and codecs are measured on N values of larger tensors, drawn by --seed. "
    "Counts, rms and the largest are those of all values.",
)
@click.option("--full", is_flag=True, help="Measure everything on all values, however many.")
@seed_option
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE.html",
    help="Write a page with diagrams, without scripts; a file of that name is replaced. Needs "
    "matplotlib: pip install 'gcodec[report]'.",
)
@limit_options
@click.option("--jsonl", "form", flag_value="jsonl", help="Print a JSON document for each tensor.")
@click.option("--csv", "form", flag_value="csv", help="Print a line for each tensor.")
@click.option("--markdown", "form", flag_value="markdown", help="Print a Markdown table.")
@click.option(
    "--width",
    type=click.IntRange(20),
    metavar="N",
    help="Columns of the table. Default: those of the terminal; in a pipe, as many as it takes.",
)
@click.option("--no-color", is_flag=True, help="No colour, as with NO_COLOR in the environment.")
@quiet_option
@json_option
def command(
    files: tuple[str, ...],
    max_err: float | None,
    max_bits: float | None,
    specs: tuple[str, ...],
    layers: tuple[str, ...],
    order: str | None,
    top: int | None,
    each: bool,
    most: int,
    full: bool,
    seed: int,
    report: str | None,
    max_elems: int,
    max_bytes: int,
    form: str | None,
    width: int | None,
    no_color: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Show what is in files of gradients, and what codecs would make of them.

    FILE is a .safetensors, .npz, .npy or .pt file, a .gcf file, a directory of them, or a glob.

    For every tensor of a dump: its values, how they are distributed (from -4 to 4 times their
    rms, counts on a logarithmic scale), the entropy in bits per value of a uniform quantiser with
    the error of --max-err, and for codecs the measured bits per value and the error ("nmse"). The
    best fit is the normal, Laplace or generalised normal distribution nearest to the values that
    are not 0, with its shape (2, 1 or any) and its 2-Wasserstein distance, as a multiple of the
    rms. Tensors of repeated blocks, whose names differ in a number, share a row: with medians of
    the fit, and a codec that is within the budget for each of them.

    For every frame of a .gcf file: where its bytes go. Only headers are read; gcodec verify checks
    the rest.
    """
    from gcodec.cli import inputs
    from gcodec.cli.measure import Task
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render.table import stdout
    from gcodec.limits import Limits

    if as_json and form:
        raise click.UsageError(f"--json and --{form} are two forms: pass one of them.")
    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise click.UsageError("--report must name a file that ends in .html.")
    sources = inputs.files(files)
    if report is not None:
        _check_report(sources)
    codecs: tuple[Any, ...] = ()
    if specs:
        from gcodec.codecs import parse

        codecs = tuple(parse(spec) for spec in dict.fromkeys(specs))
    budget = None
    wants_best = report is not None or (order in ("bits", "err") and not specs)
    if max_err is not None or max_bits is not None or wants_best:
        from gcodec.analysis.candidates import Budget

        usual = _ERROR if max_bits is None else None
        budget = Budget(max_err if max_err is not None else usual, max_bits)
    task = Task(
        codecs=codecs,
        budget=budget,
        error=_ERROR if max_err is None else max_err,
        layers=layers,
        most=None if full else most,
        seed=seed,
        limits=Limits(max_elems, max_bytes),
        quiet=quiet or as_json or form is not None,
        pictures=report is not None,
    )
    outcome = Outcome()
    reports: list[DumpReport | FrameReport] = []
    console = stdout(width, colour=not no_color)
    for path in sources:
        with outcome.of(path):
            one = _report(path, task, each)
            one.sort(order)
            if not as_json and not form:
                if reports:
                    click.echo()
                one.show(console, top, quiet)
            reports.append(one)
    _print_form("json" if as_json else form, reports, top, outcome)
    if report is not None and reports:
        from gcodec.cli.render.report import write_report

        write_report(report, cast("list[DumpReport]", reports), files)
    return outcome.code


def _check_report(sources: list[Path]) -> None:
    """Refuse what no report can be made of, before anything is measured."""
    from gcodec.cli import inputs
    from gcodec.cli.report.vector_graphics import require_matplotlib
    from gcodec.errors import ParameterError

    if frames := [str(path) for path in sources if inputs.is_frames(path)]:
        raise ParameterError(f"--report: {frames[0]} holds frames; gcodec decode makes a dump")
    try:
        require_matplotlib()
    except ImportError as error:
        raise ParameterError(f"--report: {error}") from None


def _report(path: Path, task: Task, each: bool) -> DumpReport | FrameReport:
    # What the one needs, the other does not: codecs, and what fits distributions.
    from gcodec.cli import inputs

    if inputs.is_frames(path):
        from gcodec.cli.render.frame_report import list_file

        return list_file(path, task.limits, task.layers)
    from gcodec.cli.measure import measure
    from gcodec.cli.render.dump_report import DumpReport

    return DumpReport(measure(path, task), task, each=each)


def _print_form(
    form: str | None, reports: list[DumpReport | FrameReport], top: int | None, outcome: Outcome
) -> None:
    """Print what is known of all files in one of the forms that are no table of a terminal."""
    from gcodec.cli.document import print_document, print_lines
    from gcodec.cli.render.table import print_csv, print_markdown, unmarked

    if form == "json":
        print_document("inspect", {"files": [one.document() for one in reports]}, outcome)
    elif form == "jsonl":
        print_lines("inspect", [{"file": str(r.path)} | d for r in reports for d in r.documents()])
    elif form == "csv":
        records = [{"file": str(r.path)} | record for r in reports for record in r.records()]
        names = list(dict.fromkeys(name for record in records for name in record))
        print_csv(names, [[record.get(name) for name in names] for record in records])
    elif form == "markdown":
        for i, one in enumerate(reports):
            columns, rows, total, _ = one.grid(top)
            click.echo("\n" * bool(i) + unmarked(one.headline()) + "\n")
            print_markdown(columns, [*rows, *([] if total is None else [total])])
