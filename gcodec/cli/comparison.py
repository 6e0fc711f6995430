"""Compare the tensors of two files, one of each in memory at a time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gcodec.analysis import compare as differences
from gcodec.analysis.compare import Difference
from gcodec.cli import inputs
from gcodec.cli.frames import refusal
from gcodec.cli.options import selects
from gcodec.cli.outcome import CheckFailed, Outcome
from gcodec.cli.progress import progress
from gcodec.errors import FormatError, ParameterError, Unsupported
from gcodec.frame import Frame
from gcodec.limits import Limits
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Array
from gcodec.tensorfiles.frame_file import mapped, outlines
from gcodec.wire import primitives


class Tensor(NamedTuple):
    """A tensor of a file, which is read when it is loaded.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    load : callable
    """

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers or booleans, which must be equal."""
        return self.dtype in primitives.INTEGERS


class Row(NamedTuple):
    """A tensor of either file.

    Attributes
    ----------
    name : str
    a, b : Tensor or None
        None where the file has none.
    found : Difference or None
        None where they cannot be compared, and for integers and booleans.
    unequal : int or None
        Number of elements in which integers or booleans differ; None for other tensors, and where
        they cannot be compared.
    """

    name: str
    a: Tensor | None
    b: Tensor | None
    found: Difference | None = None
    unequal: int | None = None

    @property
    def problem(self) -> str:
        """Why they cannot be compared."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if self.a.is_integer != self.b.is_integer:
            return "another dtype"
        return "" if self.a.shape == self.b.shape else "another shape"

    @property
    def is_compared(self) -> bool:
        """Whether both tensors were read and compared."""
        return self.found is not None or self.unequal is not None

    @property
    def size(self) -> int:
        """Values of the tensor, of A if it has it."""
        tensor = self.a or self.b
        assert tensor is not None
        return math.prod(tensor.shape)


class Compared(NamedTuple):
    """Two files.

    Attributes
    ----------
    path_a, path_b : pathlib.Path
    rows : list of Row
    left_out : list of str
        Names of tensors of other dtypes than a frame can hold.
    """

    path_a: Path
    path_b: Path
    rows: list[Row]
    left_out: list[str]


def compare(
    a: str, b: str, layers: tuple[str, ...], limits: Limits, outcome: Outcome, *, quiet: bool
) -> Compared | None:
    """Compare two files; None if one of them cannot be read, which `outcome` then tells.

    Raises
    ------
    ParameterError
        If there is no such file, or `layers` selects nothing.
    """
    path_a, path_b = (inputs.files([file])[0] for file in (a, b))
    with contextlib.ExitStack() as stack:
        tensors = []
        for path in (path_a, path_b):
            with outcome.of(path):
                tensors.append(stack.enter_context(_opened(path, limits)))
        if len(tensors) < 2:
            return None
        chosen = [{k: t for k, t in each.items() if selects(layers, k)} for each in tensors]
        if not any(chosen):
            matching = f"matches --layers {' '.join(layers)}" if layers else "is in any of both"
            raise ParameterError(f"no tensor {matching}")
        left_out = [
            k for each in chosen for k, t in each.items() if t.dtype not in primitives.ITEMSIZE
        ]
        ours, theirs = ({k: t for k, t in each.items() if k not in left_out} for each in chosen)
        if len(ours) == len(theirs) == 1:
            theirs = dict(zip(ours, theirs.values(), strict=True))
        rows = [Row(name, tensor, theirs.get(name)) for name, tensor in ours.items()]
        rows += [Row(name, None, tensor) for name, tensor in theirs.items() if name not in ours]
        done = []
        with progress(path_b.name, sum(row.size for row in rows), quiet=quiet) as advance:
            for row in rows:
                done.append(_compared(row, (path_a, path_b), outcome))
                advance(row.size)
        return Compared(path_a, path_b, done, list(dict.fromkeys(left_out)))


def _compared(row: Row, paths: tuple[Path, Path], outcome: Outcome) -> Row:
    if row.problem:
        return row
    values = []
    for path, tensor in zip(paths, (row.a, row.b), strict=True):
        with outcome.of(path):
            assert tensor is not None
            values.append(tensor.load())
    if len(values) < 2:
        return row
    if row.a is not None and row.a.is_integer:
        return row._replace(unequal=differences.unequal(*values))
    return row._replace(found=differences.difference(*values))


@contextlib.contextmanager
def _opened(path: Path, limits: Limits) -> Iterator[dict[str, Tensor]]:
    """Open a file, and list its tensors by name."""
    if inputs.is_frames(path):
        yield _frames(path, limits)
        return
    with open_dump(path, limits=limits) as dump:
        yield {
            entry.name: Tensor(entry.dtype, entry.shape, partial(dump.load, entry))
            for entry in dump.entries
        }


def _frames(path: Path, limits: Limits) -> dict[str, Tensor]:
    """List the frames of a file, by their headers; those without a name are numbered."""
    data, found, nameless, at = mapped(path), dict[str, Tensor](), 0, 0
    if not len(data):
        raise CheckFailed("the file is empty: it holds no frame")

    def load(start: int, number: int) -> Array:
        try:
            array: Array = Frame.read(data, start, limits, None)[0].decode()
        except FormatError as error:
            offset = start if error.offset is None else error.offset
            raise refusal(error, f"frame {number}", offset) from None
        return array

    number = 0
    try:
        for each in outlines(data):
            name, nameless = each.name, nameless + (each.name is None)
            if name is None:
                name = f"tensor{nameless - 1}"
            if name in found:
                raise Unsupported(f"two frames are named {name!r}: which one to compare?")
            found[name] = Tensor(each.dtype, each.shape, partial(load, each.start, number))
            at, number = each.end, number + 1
    except FormatError as error:
        offset = at if error.offset is None else error.offset
        raise refusal(error, f"frame {number}", offset) from None
    return found
