"""grail: PULSE's sparse updates of weights, from a trainer to inference workers.

An update is one object of bytes, which grail compresses with zstd at level 1. It contains the
length of a header, as uint32; the header, in JSON; and for each tensor that changes, by name in
ascending order, the positions and the new values of the changed elements. Numbers are
little-endian. A tensor is a matrix of its first dimension and all others; a vector has one column.

- Version 2 has the distance of each position in the flattened tensor from the preceding one.
- Version 3 has, for each element, the distance of its row from that of the preceding one, and then
  of its column; in a new row, the column itself. All are int32.
- Version 31, which grail calls 3.1, is version 3 with the narrowest of uint8, uint16 and int32 for
  rows, and of uint16 and int32 for columns.

grail compares elements as numbers: it sends neither −0 in place of 0 nor the reverse, and NaN even
where it stays. With ``compare="bits"``, the update contains the elements whose bits change, which
grail reads as well. The receiver has the base; an update contains no digest of it.

Source: one-covenant/grail 54d6342, ``grail/infrastructure/sparse_codec.py`` and
``delta_checkpoint.py``. Arrays must be on the host.

Examples
--------
>>> import ml_dtypes, numpy as np
>>> from gcodec.interop import grail
>>> base = {"w": np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)}
>>> new = {"w": np.array([[1, 2.5], [3, -4]], ml_dtypes.bfloat16)}
>>> update = grail.encode(new, base)
>>> update[-8:].hex(" ")
'01 00 01 00 20 40 80 c0'
>>> grail.decode(update, base)["w"].tolist()
[[1.0, 2.5], [3.0, -4.0]]
>>> grail.from_frame(grail.to_frame(update, base), base) == update
True
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, get_args

import numpy as np

from gcodec.errors import Corrupt, ParameterError, Truncated, Unsupported
from gcodec.interop.changes import (
    Pattern,
    Tensors,
    changes_of,
    check_names,
    check_positions,
    equal_base_of,
    from_frames,
    to_frames,
)
from gcodec.interop.objects import object_bytes
from gcodec.wire.kinds import check_choice

Version = Literal[2, 3, 31]
Comparison = Literal["value", "bits"]

_PEER = "grail"
_DTYPES = ("bfloat16", "float16", "float32")
_DISTANCES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "int32": np.dtype("<i4"),
}
_LENGTH = 4  # bytes of the length of the header


def encode(
    new: Tensors, base: Tensors, *, version: Version = 31, compare: Comparison = "value"
) -> bytes:
    """Return the update that turns a base into new tensors, before it is compressed with zstd.

    Parameters
    ----------
    new : mapping of str to array
        New tensors, of bfloat16, float16 or float32.
    base : mapping of str to array
        Old tensors of the same names, dtypes and shapes; others are ignored.
    version : {31, 3, 2}
        Version of the layout.
    compare : {"value", "bits"}
        Whether elements are compared as numbers, as grail does, or by their bits.

    Raises
    ------
    ParameterError
        If a tensor has no base of its dtype and shape, is a scalar, or has a position that int32
        does not hold.
    TypeError
        If a tensor has another dtype or is on a device.
    """
    check_choice("version", version, get_args(Version))
    check_choice("compare", compare, get_args(Comparison))
    check_names(new)
    differ = _differ_as_numbers if compare == "value" else None
    items, parts, at = list[dict[str, Any]](), list[bytes](), 0
    for name, positions, tensor, _ in changes_of(dict(sorted(new.items())), base, _PEER, differ):
        if tensor.dtype not in _DTYPES:
            allowed = ", ".join(_DTYPES)
            raise TypeError(f"new[{name!r}] has dtype {tensor.dtype}: {_PEER} takes {allowed}")
        if not tensor.shape:
            raise ParameterError.of(f"new[{name!r}].shape", (), "of at least one dimension")
        places = _places(positions, tensor.shape, version)
        if max(int(place.max()) for place in places) > np.iinfo(np.int32).max:
            allowed = "one whose positions int32 holds"
            raise ParameterError.of(f"new[{name!r}].shape", tensor.shape, allowed)
        distances = _distances(places)
        kinds = [_DISTANCES["int32"]] * len(distances)
        if version == 31:
            kinds = [_narrowest(d, first) for d, first in zip(distances, (0, 1), strict=True)]
        items.append(_item(name, tensor, positions.size, kinds, at, version))
        values = tensor.bits[positions]
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        parts += [d.astype(kind).tobytes() for d, kind in zip(distances, kinds, strict=True)]
        parts.append(values.tobytes())
        at = _end(items[-1])
    described = {"version": int(version), "tensors": items}
    header = json.dumps(described, separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(_LENGTH, "little"), header, *parts])


def decode(update: bytes | bytearray | memoryview, base: Tensors) -> dict[str, np.ndarray]:
    """Return the new tensors of an update; see `encode`.

    Parameters
    ----------
    update : bytes-like
        The update, decompressed.
    base : mapping of str to array
        Old tensors, which do not change.

    Returns
    -------
    dict
        The tensors that change, by name.

    Raises
    ------
    FormatError
        If the header and the bytes contradict each other, or a position is not one of the tensor.
    ParameterError
        If `base` lacks a tensor, or has one of another dtype or shape.
    TypeError
        If the update is not bytes-like.
    """
    version, items, data = _opened(object_bytes(update, "update").tobytes())
    new: dict[str, np.ndarray] = {}
    at = 0
    for item in items:
        name, count, kinds = _read(item, version)
        if name in new:
            raise Corrupt(f"{name!r} occurs twice")
        shape = item.get("shape")
        if not isinstance(shape, list):
            raise Corrupt(f"{name!r} has no shape")
        old = equal_base_of(base, name, _PEER, item.get("value_dtype"), tuple(shape))
        if item != _item(name, old, count, kinds, at, version):
            raise Corrupt(f"{name!r} has parts of other places or sizes than its elements need")
        if _end(item) > len(data):
            raise Truncated(f"{name!r} ends at byte {_end(item)} of {len(data)}")
        distances = []
        for kind in kinds:
            distances.append(np.frombuffer(data, kind, count, at).astype(np.int64))
            at += count * kind.itemsize
        positions = _positions(distances, old.shape)
        check_positions(positions, old.bits.size)
        bits = old.bits.copy()
        bits[positions] = np.frombuffer(data, bits.dtype.newbyteorder("<"), count, at)
        new[name] = old.array(bits)
        at = _end(item)
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes follow the last tensor")
    return new


def to_frame(update: bytes | bytearray | memoryview, base: Tensors) -> bytes:
    """Convert an update to patches, named frames without gaps; see `gcodec.iter_frames`.

    Parameters
    ----------
    update, base
        See `decode`.

    Raises
    ------
    FormatError, ParameterError, TypeError
        See `decode`.
    """
    return to_frames(decode(update, base), base)


def from_frame(
    data: bytes | bytearray | memoryview, base: Tensors, *, version: Version = 31
) -> bytes:
    """Convert patches, whose elements are compared by their bits, to an update; see `to_frame`.

    Parameters
    ----------
    data : bytes-like
        Frames of named tensors.
    base, version
        See `encode`.

    Raises
    ------
    FormatError
        If a frame is damaged or is no patch.
    ParameterError, TypeError
        See `encode`.
    """
    return encode(from_frames(data, base), base, version=version, compare="bits")


def _differ_as_numbers(new: Pattern, old: Pattern) -> np.ndarray:
    """Return which elements differ as numbers: NaN from itself, but −0 not from 0."""
    differ = new.array(new.bits) != old.array(old.bits)
    return np.asarray(differ).reshape(-1)


def _columns(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


def _places(positions: np.ndarray, shape: tuple[int, ...], version: int) -> tuple[np.ndarray, ...]:
    """Return positions, or their rows and columns."""
    return (positions,) if version == 2 else np.divmod(positions, _columns(shape))


def _distances(places: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return the distances of positions, or those of rows and of columns."""
    if len(places) == 1:
        return (np.diff(places[0], prepend=0),)
    rows, columns = places
    row_distances = np.diff(rows, prepend=0)
    preceding = np.where(row_distances > 0, 0, np.append(0, columns[:-1]))
    return row_distances, columns - preceding


def _positions(distances: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Return the positions that have these distances; see `_distances`."""
    sums = [np.cumsum(distance) for distance in distances]
    if len(distances) == 1:
        return sums[0]
    is_first = distances[0] > 0
    is_first[:1] = True
    starts = np.flatnonzero(is_first)
    before = (sums[1] - distances[1])[starts]  # the sum of the columns of all rows above
    columns = sums[1] - np.repeat(before, np.diff(starts, append=is_first.size))
    height, width = math.prod(shape[:1]), _columns(shape)
    for places, size in ((sums[0], height), (columns, width)):
        if places.size and not 0 <= int(places.min()) <= int(places.max()) < size:
            raise Corrupt(f"a row or a column is outside {height} rows and {width} columns")
    return np.asarray(sums[0] * width + columns)


def _narrowest(distances: np.ndarray, first: int) -> np.dtype[Any]:
    """Return the narrowest dtype for distances, from number `first` of all dtypes on."""
    kinds = [*_DISTANCES.values()][first:]
    return next(kind for kind in kinds if int(distances.max()) <= np.iinfo(kind).max)


def _item(
    name: str, tensor: Pattern, count: int, kinds: list[np.dtype[Any]], at: int, version: int
) -> dict[str, object]:
    """Return the description of a tensor whose bytes begin at `at`, in the order of its keys."""
    sizes = [count * kind.itemsize for kind in kinds]
    item = {
        "name": name,
        "shape": [*tensor.shape],
        "num_nonzero": count,
        "value_dtype": tensor.dtype,
    }
    if version == 31:
        item["row_dtype"], item["col_dtype"] = (kind.name for kind in kinds)
    item |= {"indices_offset": at, "indices_size": sum(sizes)}
    if version != 2:
        item["rows_size"], item["cols_size"] = sizes
    values_nbytes = count * tensor.bits.itemsize
    return item | {"values_offset": at + sum(sizes), "values_size": values_nbytes}


def _end(item: dict[str, Any]) -> int:
    """Return where the bytes of a tensor end."""
    return int(item["values_offset"] + item["values_size"])


def _opened(update: bytes) -> tuple[int, list[Any], bytes]:
    """Return the version, the descriptions of the tensors, and their bytes."""
    first = _LENGTH + int.from_bytes(update[:_LENGTH], "little")
    if len(update) < first:
        raise Truncated(f"the header ends at byte {first} of {len(update)}")
    try:
        header = json.loads(update[_LENGTH:first])
        version, items = header["version"], header["tensors"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Corrupt("the header is not that of a sparse update") from None
    if version not in get_args(Version):
        raise Unsupported(f"version {version!r} of the layout")
    if not isinstance(items, list):
        raise Corrupt("the header has no list of tensors")
    return version, items, update[first:]


def _read(item: object, version: int) -> tuple[str, int, list[np.dtype[Any]]]:
    """Return the name of a tensor, its number of changed elements, and the kinds of distances."""
    if not isinstance(item, dict):
        raise Corrupt("the header describes a tensor that has no name")
    name, count = item.get("name"), item.get("num_nonzero")
    if not isinstance(name, str) or type(count) is not int or not 1 <= count < 2**63:
        raise Corrupt(f"a tensor has the name {name!r} and {count!r} changed elements")
    kinds = ["int32"] * (1 if version == 2 else 2)
    if version == 31:
        kinds = [str(item.get("row_dtype")), str(item.get("col_dtype"))]
    if not {*kinds} <= {*_DISTANCES}:
        raise Unsupported(f"{name!r} has positions of {' and '.join(kinds)}")
    return name, count, [_DISTANCES[kind] for kind in kinds]
