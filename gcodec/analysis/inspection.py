"""Inspect the tensors of a program, as ``gcodec inspect`` inspects those of a file."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcodec.analysis.measure import TensorStats, measure, measure_tensors
from gcodec.analysis.settings import Settings
from gcodec.arrays.source import Source, is_array
from gcodec.arrays.source import inspect as source_of
from gcodec.codec import Codec, CodecLike
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.tensorfiles.entries import Array, Dump, Entry, native
from gcodec.tensorfiles.tree import take_apart
from gcodec.wire.kinds import check_integer, check_positive

_MAX_ROWS = 60  # of a table in a notebook


class Inspection(list[dict[str, Any]]):
    """Rows of `inspect`, a dict for each tensor, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        keys = list(self[0]) if self else []
        headers = "".join(f"<th>{html.escape(key)}</th>" for key in keys)
        lines = [f"<table>\n<thead><tr>{headers}</tr></thead>\n<tbody>"]
        for row in self[:_MAX_ROWS]:
            cells = (html.escape(_cell(row[key])) for key in keys)
            lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        if hidden := len(self) - len(self[:_MAX_ROWS]):
            lines.append(f'<tr><td colspan="{len(keys)}">({hidden:,} more)</td></tr>')
        return "\n".join([*lines, "</tbody>\n</table>"])


@exact
def inspect(
    tree: object,
    *,
    nmse: float = 0.01,
    codecs: CodecLike | Sequence[CodecLike] = (),
    max_values: int | None = 65_536,
    limits: Limits | None = None,
) -> Inspection:
    """Measure the tensors of a program or of a file, as ``gcodec inspect`` does.

    The command with ``--max-nmse`` or ``--max-bits`` also finds the best codec of each tensor; in
    a program `gcodec.choose` does so.

    Parameters
    ----------
    tree : array, tree of arrays, str or os.PathLike
        An array that `gcodec.encode` accepts; a tree of arrays that `gcodec.save_file` accepts,
        such as a ``state_dict``; or the path of a dump, such as a .safetensors file. Numbers and
        texts of a tree are left out.
    nmse : float
        Normalized error ‖x − x̂‖²/‖x‖², above 0, at which the entropy is measured.
    codecs : str, mapping, Codec or sequence of these
        Codecs to try on every tensor; see `gcodec.parse`.
    max_values : int, optional
        Number of values in a sample of a larger tensor, on which the distribution, the entropy
        and the codecs are measured; None measures all values.
    limits : Limits, optional
        Bounds on the size of a tensor in a file.

    Returns
    -------
    list of dict
        A row for each tensor; `pandas.DataFrame` and `polars.DataFrame` accept the list. A row has
        the keys of ``gcodec inspect --csv``:

        - ``"tensor"``: the name, as in a file of `gcodec.save_file`, or "tensor" for one array.
        - ``"shape"``, ``"dtype"``: text.
        - ``"values"``, ``"measured"``, ``"zeros"``, ``"nonfinite"``: counts; ``"measured"`` is the
          size of the sample.
        - ``"rms"``, ``"max_abs"``: in the unit of the values.
        - ``"fit"``, ``"beta"``, ``"w2_in_rms"``, ``"ks"``: the nearest distribution.
        - ``"entropy_bits"``: in bits per value.
        - ``"sign bits_per_value"``, ``"sign nmse"``, with the specs of `codecs`: the bits of whole
          frames, and the error.

        The entropy and the codecs count NaN and Inf as 0. Integers and booleans are not measured:
        ``"measured"`` and the counts are 0, ``"fit"`` is empty, and the numbers are NaN. For
        tensors of few values, ``"fit"`` is empty and its numbers are NaN. The numbers of a codec
        are NaN for a tensor that it refuses.

    Raises
    ------
    TypeError
        If `tree` is no array, tree or path, or an array is sparse, masked or unreadable.
    ParameterError
        If `nmse`, `codecs` or `max_values` is invalid, two tensors have the same name, or `tree`
        is nested too deeply.
    FormatError, OSError
        If a file cannot be read.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> gradients = {"fc": {"weight": np.eye(4, dtype=np.float32), "step": np.array(7)}}
    >>> [(row["tensor"], row["shape"], row["rms"]) for row in gcodec.inspect(gradients)]
    [('fc.weight', '4x4', 0.5), ('fc.step', '', nan)]
    """
    if max_values is not None:
        allowed = "an integer of at least 1, or None"
        max_values = check_integer("max_values", max_values, 1, 2**62, allowed)
    listed = [codecs] if isinstance(codecs, (str, Mapping, Codec)) else codecs
    if not isinstance(listed, Iterable):
        raise ParameterError.of("codecs", codecs, "a spec, a mapping, a Codec or several of these")
    named = {c if isinstance(c, str) else str(parse_encoder(c)): parse_encoder(c) for c in listed}
    settings = Settings(
        codecs=tuple(named.values()),
        error=check_positive("nmse", nmse, "a finite number above 0", finite=True),
        max_values=max_values,
        limits=Limits.or_default(limits),
    )
    tensors: list[TensorStats]
    with np.errstate(under="ignore"):
        if isinstance(tree, (str, os.PathLike)):
            tensors = measure(Path(tree), settings).tensors
        else:
            with _TreeDump(tree, settings.limits) as dump:
                tensors = measure_tensors(dump, settings)
    return Inspection(tensor.record(list(named)) for tensor in tensors)


class _TreeDump(Dump):
    """The arrays of a program, opened as a dump."""

    format = "tree"

    def __init__(self, tree: object, limits: Limits) -> None:
        super().__init__(Path("tree"), limits)
        self._sources: dict[str, Source] = {}
        is_single = is_array(tree)
        tensors: list[tuple[str, Any]] = [("tensor", tree)] if is_single else take_apart(tree)[1]
        for name, array in tensors:
            source = source_of(array, "tree" if is_single else name)
            entry = Entry(name, *source.description())
            self._sources[name] = source
            self.entries.append(entry)
            self._by_name[name] = entry

    def _load(self, entry: Entry) -> Array:
        return native(self._sources[entry.name].on_host())

    def _close(self) -> None:
        self._sources.clear()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.3g}"
