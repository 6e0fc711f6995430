"""``gcodec inspect``: what is in a file of gradients, and what codecs would make of it."""

from __future__ import annotations

import click

from gcodec.cli.completion import FILE, complete_spec
from gcodec.cli.options import (
    json_option,
    layers_option,
    limit_options,
    quiet_option,
    seed_option,
)
from gcodec.cli.verb import Verb

_CODECS = ("minmax", "qsgd:bucket=512", "mxnet-2bit:threshold=auto", "terngrad", "sign")


@click.command(
    cls=Verb,
    name="inspect",
    examples=[
        ("See what is in a dump.", "gcodec inspect grads.safetensors"),
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
    "-c",
    "--codec",
    "specs",
    multiple=True,
    default=_CODECS,
    metavar="SPEC",
    shell_complete=complete_spec,
    help=f"Codec to try; repeatable. Default: {', '.join(_CODECS)}.",
)
@layers_option
@click.option(
    "--sort",
    "order",
    type=click.Choice(["size", "bits", "err", "name"]),
    help="Order of the rows: most values, most bits per value or largest error of the first "
    "codec, or name. Default: as in the file.",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", help="Only the first N rows of the table."
)
@click.option(
    "--sample",
    "most",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Measure larger tensors on N of their values. NaN and Inf are looked for in all.",
)
@click.option("--full", is_flag=True, help="Measure all values, however many.")
@seed_option
@limit_options
@quiet_option
@json_option
def command(
    files: tuple[str, ...],
    specs: tuple[str, ...],
    layers: tuple[str, ...],
    order: str | None,
    top: int | None,
    most: int,
    full: bool,
    seed: int,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Show what is in files of gradients, and what codecs would make of them.

    FILE is a .safetensors, .npz, .npy or .pt file, a .gcf file, a directory of them, or a glob.
    For every tensor of a dump: its values, how they are distributed (from -4 to 4 times their
    rms, counts on a logarithmic scale), and for every codec the measured bits per value and the
    error ||x - decoded||^2 / ||x||^2. The best fit is the normal, Laplace or generalised normal
    distribution nearest to the values that are not 0, with its shape (2, 1 or any) and its
    2-Wasserstein distance, as a multiple of the rms. For every frame of a .gcf file: where its
    bytes go.
    """
    from gcodec.cli import frame_report, inputs
    from gcodec.cli.document import print_document
    from gcodec.cli.dump_report import DumpReport
    from gcodec.cli.measure import Task, measure
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.table import stdout
    from gcodec.codecs import parse
    from gcodec.limits import Limits

    task = Task(
        codecs=tuple(parse(spec) for spec in dict.fromkeys(specs)),
        layers=layers,
        most=None if full else most,
        seed=seed,
        limits=Limits(max_elems, max_bytes),
        quiet=quiet or as_json,
    )
    outcome = Outcome()
    reports: list[DumpReport | frame_report.FrameReport] = []
    console = stdout()
    for path in inputs.files(files):
        with outcome.of(path):
            report: DumpReport | frame_report.FrameReport
            if inputs.is_frames(path):
                report = frame_report.measure(path, task.limits, layers)
            else:
                report = DumpReport(measure(path, task), task)
            report.sort(order)
            if not as_json:
                if reports:
                    click.echo()
                report.show(console, top, quiet)
            reports.append(report)
    if as_json:
        print_document("inspect", {"files": [r.document() for r in reports]}, outcome)
    return outcome.code
