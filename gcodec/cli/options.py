"""Options that several verbs share. Nothing heavy is imported here: help must be instant."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gcodec.cli.completion import complete_layer
from gcodec.limits import Limits

_F = TypeVar("_F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number in a range, in which NaN is not, though it is neither below nor above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Print no notes, no progress and no summary."
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="Seed of the run; every tensor derives its own from it and its name.",
)
layers_option = click.option(
    "-L",
    "--layers",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_layer,
    help="Only tensors whose name matches, such as '*.weight'; '!GLOB' leaves out those that do. "
    "Repeatable.",
)
force_option = click.option("-f", "--force", is_flag=True, help="Replace files that exist.")


def limit_options(function: _F) -> _F:
    """Add ``--max-elems`` and ``--max-bytes``."""
    usual = Limits()
    for name, default, what in (
        ("--max-bytes", usual.max_bytes, "bytes of one decoded tensor"),
        ("--max-elems", usual.max_elements, "elements of one tensor"),
    ):
        function = click.option(
            name,
            type=click.IntRange(1),
            default=default,
            show_default=True,
            metavar="N",
            help=f"Most {what}; more is refused before memory is taken.",
        )(function)
    return function


def selects(layers: tuple[str, ...], name: str) -> bool:
    """Tell whether ``--layers`` selects a tensor."""
    wanted = [glob for glob in layers if not glob.startswith("!")]
    unwanted = [glob[1:] for glob in layers if glob.startswith("!")]
    return (not wanted or any(fnmatch.fnmatchcase(name, glob) for glob in wanted)) and not any(
        fnmatch.fnmatchcase(name, glob) for glob in unwanted
    )
