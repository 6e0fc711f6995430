"""``gcodec compare``: measure the differences between the tensors of two files."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.errors import ParameterError
from gcodec.wire import primitives

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.cli.render.compare import ComparisonView
    from gcodec.tensorfiles.entries import Dump, Entry


@options.verb(
    "compare",
    (
        "Show the effect of encoding; fail if a tensor loses more than half of its energy.",
        "gcodec compare grads.safetensors grads.gcf --max-nmse 0.5",
    ),
    (
        "Show the ten weights that changed most between two steps.",
        "gcodec compare grads.safetensors next.safetensors -L '*.weight' --sort nmse --top 10",
    ),
)
@click.argument("a", metavar="A", type=options.FILE)
@click.argument("b", metavar="B", type=options.FILE)
@options.layers
@click.option(
    "--max-nmse",
    "--max-err",
    "max_nmse",
    type=options.Number(0),
    metavar="X",
    help="Fail with exit code 1 if the nmse of a tensor exceeds X.",
)
@click.option(
    "--sort",
    "order",
    type=options.Order(["size", "nmse", "name"]),
    help="Order of the rows: most values, largest nmse, or name. Default: as in A.",
)
@options.top
@options.key
@options.outcome
def command(
    a: str,
    b: str,
    layers: tuple[str, ...],
    max_nmse: float | None,
    order: str | None,
    top: int | None,
    key: bytes | None,
    outcome: Outcome,
) -> int:
    """Show the differences between the tensors of A and B.

    A and B are .safetensors, .npz, .npy, .pt or .gcf files, or folders of
    torch.distributed.checkpoint, in any combination; one of them may be -, which is stdin. Tensors
    match by name; if each file contains one tensor, these two match. For each pair, and for all
    pairs together, gcodec shows the nmse ||b - a||^2 / ||a||^2, the cosine of the angle
    between the tensors, the largest |b - a|, and the share of the nonzero values of A that have
    the same sign in B. Integers and booleans, such as counters and masks, must be equal. The exit
    code is 1 if a tensor is in one file only or has another shape, if integers or booleans
    differ, or if an nmse exceeds --max-nmse.
    """
    from gcodec.cli import files
    from gcodec.cli.render.output import stdout

    if a == b == str(files.STREAM):
        raise ParameterError("-: stdin must be A or B, not both")
    paths = [files.one_input(name, "one dump or .gcf file", stdin=True) for name in (a, b)]
    view = _compare(paths, layers, max_nmse, key, outcome)
    if view is not None:
        view.sort(order)
        if not outcome.as_json:
            view.show(stdout(), top, outcome.quiet)
        with outcome.of(paths[1]):
            view.check()
    body = {"tensors": [], "total": None} if view is None else view.document()
    return outcome.finish({"a": a, "b": b, "max_nmse": max_nmse, **body})


def _compare(
    paths: list[Path],
    layers: tuple[str, ...],
    max_nmse: float | None,
    key: bytes | None,
    outcome: Outcome,
) -> ComparisonView | None:
    """Compare two files, one tensor of each in memory at a time; None if a file is unreadable."""
    from gcodec.analysis.compare import match
    from gcodec.cli.render.compare import ComparisonView
    from gcodec.cli.render.output import progress

    with contextlib.ExitStack() as stack:
        opened = [_open(path, stack, key, outcome) for path in paths]
        dumps = [dump for dump in opened if dump is not None]
        if len(dumps) < 2:
            return None
        comparable, skipped = _comparable(dumps, layers)
        pairs = match(*comparable)
        total = sum(pair.size for pair in pairs)
        with progress(paths[1].name, total, quiet=outcome.quiet) as advance:
            for i, pair in enumerate(pairs):
                entries = () if pair.problem else (pair.a, pair.b)
                values = []
                for path, dump, entry in zip(paths, dumps, entries, strict=False):
                    assert entry is not None  # a pair without problems has both
                    with outcome.of(path, in_frames=dump.format == "gcf"):
                        values.append(dump.load(entry))
                if len(values) == 2:
                    pairs[i] = pair.compared(*values)
                advance(pair.size)
    return ComparisonView(paths[0], paths[1], pairs, skipped, max_nmse)


def _open(
    path: Path, stack: contextlib.ExitStack, key: bytes | None, outcome: Outcome
) -> Dump | None:
    """Open a file until the end of a stack; return None after an error, which is reported."""
    from gcodec.cli.files import is_frames, local_file
    from gcodec.tensorfiles.dumps import open_dump
    from gcodec.tensorfiles.frame_file import FrameDump

    dump = None
    with outcome.of(path):
        file = stack.enter_context(local_file(path))
        in_frames = is_frames(file)
        with outcome.of(path, in_frames=in_frames):
            limits = outcome.limits
            opened = FrameDump(file, limits, key) if in_frames else open_dump(file, limits=limits)
            dump = stack.enter_context(opened)
    return dump


def _comparable(dumps: list[Dump], layers: tuple[str, ...]) -> tuple[list[list[Entry]], list[str]]:
    """Return the tensors of each file to compare, and the names of those that are skipped.

    Raises
    ------
    ParameterError
        If there is no tensor to compare: an empty comparison must not pass.
    """
    from gcodec.analysis.groups import omissions, selects

    selected = [[e for e in dump.entries if selects(layers, e.name)] for dump in dumps]
    if not any(selected):
        reason = f"matches --layers {' '.join(layers)}" if layers else "is in either file"
        raise ParameterError(f"no tensor {reason}")
    storable = [[e for e in side if e.dtype in primitives.ITEMSIZE] for side in selected]
    others = [e for side in selected for e in side if e.dtype not in primitives.ITEMSIZE]
    # A file of lossless frames contains a tensor of another dtype, such as float8, as its bytes.
    as_bytes = {(e.name, e.size * _width(e.dtype) // 8) for e in others}
    comparable = [
        [e for e in side if e.dtype != "uint8" or (e.name, e.size) not in as_bytes]
        for side in storable
    ]
    if not any(comparable):
        dtypes = sorted({entry.dtype for entry in others})
        raise ParameterError(f"no tensor can be compared: frames store no {', '.join(dtypes)}")
    skipped = [e.name for e in others]
    skipped += [name for dump in dumps for name in omissions(dump, layers)]
    return comparable, list(dict.fromkeys(skipped))


def _width(dtype: str) -> int:
    """Return the number of bits of an element by the name of its dtype; 0 if it has no number."""
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 0
