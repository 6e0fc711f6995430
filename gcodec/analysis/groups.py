"""Tensors selected by their names, and grouped with those whose names differ in numbers alone."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcodec.policy import matches_any
from gcodec.tensorfiles.entries import Dump, Entry

_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")  # a whole part of a dotted name, or of a path


def pattern_of(name: str) -> str:
    """Return a name with ``*`` for its parts that are numbers.

    Examples
    --------
    >>> pattern_of("blk.11.attn.q"), pattern_of("layer2.conv1.weight")
    ('blk.*.attn.q', 'layer2.conv1.weight')
    """
    return _NUMBER.sub("*", name)


def grouped(tensors: Iterable[Entry], *, each: bool = False) -> list[list[Entry]]:
    """Put the tensors of repeated blocks together.

    Parameters
    ----------
    tensors : iterable of Entry
    each : bool
        Whether each tensor has a group of its own.

    Returns
    -------
    list of list of Entry
        Tensors of one pattern, dtype and shape, in the order of the first of each.
    """
    groups: dict[object, list[Entry]] = {}
    for entry in tensors:
        key = entry if each else (pattern_of(entry.name), entry.dtype, entry.shape)
        groups.setdefault(key, []).append(entry)
    return list(groups.values())


def selects(layers: tuple[str, ...], name: str) -> bool:
    """Return whether globs select a tensor.

    Parameters
    ----------
    layers : tuple of str
        Globs of which one must match, and after an exclamation mark globs of which none may match.
    name : str
        Name of the tensor.

    Examples
    --------
    >>> selects(("*.weight", "!fc.*"), "conv.weight"), selects(("!fc.*",), "fc.bias")
    (True, False)
    """
    wanted = [glob for glob in layers if not glob.startswith("!")]
    unwanted = [glob[1:] for glob in layers if glob.startswith("!")]
    return (not wanted or matches_any(name, wanted)) and not matches_any(name, unwanted)


def omissions(dump: Dump, layers: tuple[str, ...]) -> dict[str, str]:
    """Return the selected tensors that the reader of a dump passes over, and the reasons."""
    return {name: why for name, why in dump.omitted.items() if selects(layers, name)}
