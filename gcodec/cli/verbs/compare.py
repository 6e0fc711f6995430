"""``gcodec compare``: how far the tensors of one file are from those of another."""

from __future__ import annotations

from typing import Any

import click

from gcodec.cli.completion import FILE
from gcodec.cli.options import Number, json_option, layers_option, limit_options, quiet_option
from gcodec.cli.verb import Verb


@click.command(
    cls=Verb,
    name="compare",
    examples=[
        (
            "What encoding did to a dump; fail if more than half of a tensor is lost.",
            "gcodec compare grads.safetensors grads.gcf --max-err 0.5",
        ),
        (
            "The ten weights that changed most from one step to the next.",
            "gcodec compare grads.safetensors next.safetensors -L '*.weight' --sort err --top 10",
        ),
    ],
)
@click.argument("a", metavar="A", type=FILE)
@click.argument("b", metavar="B", type=FILE)
@layers_option
@click.option(
    "--max-err",
    "bound",
    type=Number(0),
    metavar="X",
    help="Fail, with exit code 1, if the relative error of any tensor is above X.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["size", "err", "name"]),
    help="Order of the rows: most values, largest error, or name. Default: as in A.",
)
@click.option(
    "--top", type=click.IntRange(1), metavar="N", help="Only the first N rows of the table."
)
@limit_options
@quiet_option
@json_option
def command(
    a: str,
    b: str,
    layers: tuple[str, ...],
    bound: float | None,
    order: str | None,
    top: int | None,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Show how far the tensors of B are from those of A.

    A and B are .safetensors, .npz, .npy, .pt or .gcf files, each of any kind. Tensors are matched
    by name; a lone one in each is matched whatever its name. For each, and for all together: the
    relative error ||b - a||^2 / ||a||^2, the cosine of the angle between them, the largest
    |b - a|, and the share of the values of A other than 0 whose sign B has. Integers and booleans,
    such as counters and masks, must be equal. The exit code is 1 if a tensor is in one file only
    or has another shape, if integers or booleans differ, or an error passes --max-err.
    """
    from gcodec.cli.comparison import compare
    from gcodec.cli.document import print_document
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render.comparison_report import ComparisonReport
    from gcodec.cli.render.table import stdout
    from gcodec.limits import Limits

    outcome = Outcome()
    found = compare(a, b, layers, Limits(max_elems, max_bytes), outcome, quiet=quiet or as_json)
    if found is not None:
        report = ComparisonReport(found, bound)
        report.sort(order)
        if not as_json:
            report.show(stdout(), top, quiet)
        with outcome.of(found.path_b):
            report.check()
    if as_json:
        body: dict[str, Any] = {"a": a, "b": b, "max_err": bound}
        body |= {"tensors": [], "total": None} if found is None else report.document()
        print_document("compare", body, outcome)
    return outcome.code
