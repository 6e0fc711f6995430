"""NeMo-RL: sparse updates of weights, from a trainer to inference workers.

An update is a triple, which NeMo-RL writes with ``torch.save`` and zstd:

- The bytes of all positions: for each tensor, the number of elements between a changed one and the
  preceding one, little-endian, as uint16, uint32 or uint64, by the largest of them. Positions in a
  row are a ``range`` instead, and have no bytes.
- The values of all changed elements, in an array for each width of elements: int64, int32, int16
  or uint8. They are the bit patterns of new elements (``overwrite``), or the exclusive or of those
  and the old ones (``xor``).
- A dict for each tensor that changes, with its name, shape and dtype, the operation, and where its
  positions and values lie.

Elements are compared by their bits. The receiver has the base; an update contains no digest of it.

Source: NVIDIA-NeMo/RL 7ea279a, ``nemo_rl/utils/weight_transfer_sparse_codec.py``. Arrays must be
on the host.

Examples
--------
>>> import ml_dtypes, numpy as np
>>> from gcodec.interop import nemo_rl
>>> base = {"w": np.array([1, 2, 3, 4], ml_dtypes.bfloat16)}
>>> new = {"w": np.array([1, 2.5, 3, -4], ml_dtypes.bfloat16)}
>>> update = nemo_rl.encode(new, base, operation="overwrite")
>>> update.locations.tobytes().hex(" "), [values.tolist() for values in update.values]
('01 00 01 00', [[16416, -16256]])
>>> nemo_rl.decode(update, base)["w"].tolist()
[1.0, 2.5, 3.0, -4.0]
>>> frames = nemo_rl.to_frame(update, base)
>>> nemo_rl.from_frame(frames, base, operation="overwrite").metadata == update.metadata
True
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gcodec.errors import Corrupt, FormatError, Unsupported, brief
from gcodec.interop.changes import (
    Tensors,
    changes_of,
    equal_base_of,
    from_frames,
    gaps_of,
    positions_of_gaps,
    to_frames,
)
from gcodec.interop.objects import array_of
from gcodec.wire.kinds import check_choice, check_integer

Operation = Literal["xor", "overwrite"]

_PEER = "NeMo-RL"
_OPERATIONS = get_args(Operation)
_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
_GAPS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_NUMBERS = ("index_start", "index_end", "value_group", "value_start", "value_end")


class Update(NamedTuple):
    """An update, as a tuple of NeMo-RL's parts.

    Attributes
    ----------
    locations : (m,) uint8 array
        Bytes of all positions.
    values : tuple of arrays
        Values of all changed elements, by the width of elements.
    metadata : list of dict
        Description of each tensor that changes.
    """

    locations: np.ndarray
    values: tuple[np.ndarray, ...]
    metadata: list[dict[str, object]]


def encode(new: Tensors, base: Tensors, *, operation: Operation = "xor") -> Update:
    """Return the update that turns a base into new tensors.

    Parameters
    ----------
    new : mapping of str to array
        New tensors, of any dtype of frames.
    base : mapping of str to array
        Old tensors of the same names, dtypes and shapes; others are ignored.
    operation : {"xor", "overwrite"}
        Whether values are the exclusive or of new and old elements, or new elements.

    Raises
    ------
    ParameterError
        If a tensor has no base of its dtype and shape.
    TypeError
        If a tensor is no array or is on a device.
    """
    check_choice("operation", operation, _OPERATIONS)
    locations, metadata = list[np.ndarray](), list[dict[str, Any]]()
    groups: dict[object, int] = {}
    parts: list[list[np.ndarray]] = []
    at = 0
    for name, positions, tensor, old in changes_of(new, base, _PEER):
        values = tensor.bits[positions]
        if operation == "xor":
            values ^= old.bits[positions]
        first, count = int(positions[0]), positions.size
        start = at
        if int(positions[-1]) - first + 1 == count:
            place: dict[str, object] = {"index_encoding": "range", "range_start": first}
        else:
            place = {"index_encoding": "deltas"}
            locations.append(gaps_of(positions).view(np.uint8))
            at += locations[-1].size
        group = groups.setdefault(values.itemsize, len(groups))
        if group == len(parts):
            parts.append([])
        value_start = sum(part.size for part in parts[group])
        parts[group].append(values.view(_SIGNED[values.itemsize]))
        spans = start, at, group, value_start, value_start + count
        metadata.append(
            {"name": name, "shape": tensor.shape, "dtype": tensor.dtype, "operation": operation}
            | dict(zip(_NUMBERS, spans, strict=True))
            | place
        )
    whole = np.concatenate(locations) if locations else np.empty(0, np.uint8)
    return Update(whole, tuple(np.concatenate(part) for part in parts), metadata)


def decode(update: tuple[Any, Any, Any], base: Tensors) -> dict[str, np.ndarray]:
    """Return the new tensors of an update; see `encode`.

    Parameters
    ----------
    update : Update or tuple
        The parts of the update, as arrays.
    base : mapping of str to array
        Old tensors, which do not change.

    Returns
    -------
    dict
        The tensors that change, by name.

    Raises
    ------
    FormatError
        If the parts contradict each other, or a position is not one of the tensor.
    ParameterError
        If `base` lacks a tensor, or has one of another dtype or shape.
    """
    try:
        locations, groups, metadata = update
        locations = array_of(locations, "locations")
        values = tuple(array_of(group, "values") for group in groups)
        items = [_Item.of(item) for item in metadata]
    except FormatError:  # which is a ValueError, too
        raise
    except (TypeError, ValueError, LookupError):  # such as a ParameterError
        raise Corrupt("the parts of the update do not have the form of NeMo-RL's") from None
    if locations.dtype != np.uint8 or locations.ndim != 1:
        raise Corrupt(f"the positions are {locations.dtype} of shape {locations.shape}")
    new: dict[str, np.ndarray] = {}
    for item in items:
        if item.name in new:
            raise Corrupt(f"{item.name!r} occurs twice")
        old = equal_base_of(base, item.name, _PEER, item.dtype, item.shape)
        positions = item.positions(locations, old.bits.size)
        part = item.values(values, old.bits.itemsize).view(old.bits.dtype)
        bits = old.bits.copy()
        bits[positions] = part ^ bits[positions] if item.operation == "xor" else part
        if old.dtype == "bool" and int(bits.max(initial=0)) > 1:
            raise Corrupt(f"{item.name!r} has an element that is neither true nor false")
        new[item.name] = old.array(bits)
    return new


def to_frame(update: tuple[Any, Any, Any], base: Tensors) -> bytes:
    """Convert an update to patches, named frames without gaps; see `gcodec.iter_frames`.

    Parameters
    ----------
    update, base
        See `decode`.

    Raises
    ------
    FormatError, ParameterError
        See `decode`.
    """
    return to_frames(decode(update, base), base)


def from_frame(
    data: bytes | bytearray | memoryview, base: Tensors, *, operation: Operation = "xor"
) -> Update:
    """Convert patches to an update; see `to_frame`.

    Parameters
    ----------
    data : bytes-like
        Frames of named tensors.
    base, operation
        See `encode`.

    Raises
    ------
    FormatError
        If a frame is damaged or is no patch.
    ParameterError
        If `base` lacks a tensor, or its tensor is not the one that was patched.
    """
    return encode(from_frames(data, base), base, operation=operation)


class _Item(NamedTuple):
    """The description of a tensor; see `encode`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    operation: str
    place: slice
    group: int
    value: slice
    range_start: int | None

    @classmethod
    def of(cls, item: dict[str, Any]) -> _Item:
        """Read a description; raise an error of Python or `ParameterError` for another form."""
        start, end, group, value_start, value_end = (_count(item[name]) for name in _NUMBERS)
        if start > end or value_start >= value_end:
            raise Corrupt(f"{item['name']!r} has positions or values of no size")
        operation, encoding = item["operation"], item["index_encoding"]
        if operation not in _OPERATIONS or encoding not in ("range", "deltas"):
            unknown = brief(f"the operation {operation!r} with positions as {encoding!r}")
            raise Unsupported(f"{unknown} is not known")
        return cls(
            str(item["name"]),
            tuple(map(_count, item["shape"])),
            str(item["dtype"]),
            operation,
            slice(start, end),
            group,
            slice(value_start, value_end),
            _count(item["range_start"]) if encoding == "range" else None,
        )

    @property
    def size(self) -> int:
        """Number of changed elements."""
        return int(self.value.stop - self.value.start)

    def positions(self, locations: np.ndarray, n: int) -> np.ndarray | slice:
        """Return the positions among n elements."""
        if self.range_start is not None:
            if self.range_start > n - self.size:
                raise Corrupt(f"a range from {self.range_start} on of {n} elements")
            return slice(self.range_start, self.range_start + self.size)
        nbytes = self.place.stop - self.place.start
        width, rest = divmod(nbytes, self.size)
        if rest or width not in _GAPS or self.place.stop > locations.size:
            raise Corrupt(f"{self.name!r} has {nbytes} bytes for {self.size} positions")
        part = locations[self.place].tobytes()
        return positions_of_gaps(np.frombuffer(part, _GAPS[width]), n)

    def values(self, groups: tuple[np.ndarray, ...], itemsize: int) -> np.ndarray:
        """Return the values of the tensor."""
        if self.group >= len(groups):
            raise Corrupt(f"{self.name!r} has values in group {self.group} of {len(groups)}")
        group = groups[self.group]
        is_known = group.dtype == _SIGNED[itemsize] and group.ndim == 1
        if not is_known or self.value.stop > group.size:
            raise Corrupt(f"{self.name!r} has values that group {self.group} does not have")
        return np.ascontiguousarray(group[self.value])


def _count(value: object) -> int:
    """Return a number of elements; raise `ParameterError` if no array has as many."""
    return check_integer("count", value, 0, 2**63 - 1, "a number of elements")
