"""Tensors of repeated blocks: those whose names differ in numbers only, and in nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gcodec.tensorfiles.entries import Entry

_NUMBER = re.compile(r"(?<![^./])\d+(?![^./])")  # a whole part of a dotted name, or of a path


def pattern_of(name: str) -> str:
    """Return a name with ``*`` for its parts that are numbers.

    Examples
    --------
    >>> pattern_of("blk.11.attn.q"), pattern_of("layer2.conv1.weight")
    ('blk.*.attn.q', 'layer2.conv1.weight')
    """
    return _NUMBER.sub("*", name)


def grouped(tensors: Iterable[Entry]) -> list[list[int]]:
    """Put the tensors of repeated blocks together.

    Parameters
    ----------
    tensors : iterable of Entry

    Returns
    -------
    list of list of int
        Places of tensors of one pattern, dtype and shape, in the order of the first of each.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for place, entry in enumerate(tensors):
        key = pattern_of(entry.name), entry.dtype, entry.shape
        groups.setdefault(key, []).append(place)
    return list(groups.values())
