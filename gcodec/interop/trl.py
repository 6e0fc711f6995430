"""TRL: sparse updates of bfloat16 weights, from a trainer to inference workers.

An update is a safetensors file. For each tensor that changes, ``NAME.val`` contains the new values
of the changed elements, and ``NAME.idx`` their positions in the flattened tensor: ``raw``, as
int32; or as ``gap``, the number of elements between one and the preceding one, as uint16, or as
uint32 if one of them needs it. Elements are compared by their bits. The receiver has the base; an
update contains no digest of it.

Source: the proposal huggingface/trl#5937. Arrays must be on the host.

Examples
--------
>>> import ml_dtypes, numpy as np
>>> from gcodec.interop import trl
>>> base = {"w": np.array([1, 2, 3, 4], ml_dtypes.bfloat16)}
>>> new = {"w": np.array([1, 2.5, 3, -4], ml_dtypes.bfloat16)}
>>> update = trl.encode(new, base)
>>> {name: part.tolist() for name, part in update.items()}
{'w.val': [2.5, -4.0], 'w.idx': [1, 1]}
>>> trl.decode(update, base)["w"].tolist()
[1.0, 2.5, 3.0, -4.0]
>>> trl.from_frame(trl.to_frame(update, base), base).keys() == update.keys()
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt, ParameterError
from gcodec.interop.changes import (
    Tensors,
    base_of,
    changes_of,
    check_positions,
    from_frames,
    gaps_of,
    positions_of_gaps,
    to_frames,
)
from gcodec.interop.objects import array_of, require_mapping
from gcodec.wire.kinds import check_choice

Index = Literal["gap", "raw"]

_PEER = "TRL"
_DTYPE = "bfloat16"
_VALUES, _INDEX = ".val", ".idx"
_INDEX_DTYPES = ("int32", "uint16", "uint32")


def encode(new: Tensors, base: Tensors, *, index: Index = "gap") -> dict[str, np.ndarray]:
    """Return the update that turns a base into new tensors.

    Parameters
    ----------
    new : mapping of str to bfloat16 array
        New tensors.
    base : mapping of str to bfloat16 array
        Old tensors of the same names and shapes; others are ignored.
    index : {"gap", "raw"}
        Form of the positions.

    Returns
    -------
    dict
        Arrays by the names in the file. Tensors that do not change are left out.

    Raises
    ------
    ParameterError
        If a tensor has no base of its shape, or has too many elements.
    TypeError
        If a tensor has another dtype or is on a device.
    """
    check_choice("index", index, get_args(Index))
    update: dict[str, np.ndarray] = {}
    for name, positions, tensor, _ in changes_of(new, base, _PEER):
        if tensor.dtype != _DTYPE:
            raise TypeError(f"new[{name!r}] has dtype {tensor.dtype}: {_PEER} takes {_DTYPE}")
        if tensor.bits.size > 2**31:
            allowed = f"at most {2**31}"
            raise ParameterError.of(f"new[{name!r}].size", tensor.bits.size, allowed)
        update[name + _VALUES] = tensor.bits[positions].view(NUMPY_DTYPES[_DTYPE])
        coded = gaps_of(positions) if index == "gap" else positions.astype(np.int32)
        update[name + _INDEX] = coded
    return update


def decode(update: Mapping[str, object], base: Tensors) -> dict[str, np.ndarray]:
    """Return the new tensors of an update; see `encode`.

    Parameters
    ----------
    update : mapping of str to array
        Arrays by the names in the file.
    base : mapping of str to bfloat16 array
        Old tensors, which do not change.

    Returns
    -------
    dict
        The tensors that change, by name.

    Raises
    ------
    FormatError
        If the arrays contradict each other, or a position is not one of the tensor.
    ParameterError
        If `base` lacks a tensor.
    TypeError
        If a base has another dtype.
    """
    require_mapping("update", update)
    names = [str(key).removesuffix(_VALUES) for key in update if str(key).endswith(_VALUES)]
    if {*update} != {name + part for name in names for part in (_VALUES, _INDEX)}:
        raise Corrupt("each tensor must have values and positions, and the file no other arrays")
    new: dict[str, np.ndarray] = {}
    for name in names:
        old = base_of(base, name, _PEER)
        if old.dtype != _DTYPE:
            raise TypeError(f"base[{name!r}] has dtype {old.dtype}: {_PEER} takes {_DTYPE}")
        values, coded = (array_of(update[key], key) for key in (name + _VALUES, name + _INDEX))
        if values.dtype != NUMPY_DTYPES[_DTYPE] or coded.dtype.name not in _INDEX_DTYPES:
            raise Corrupt(f"{name!r} has values of {values.dtype}, positions of {coded.dtype}")
        if values.ndim != 1 or values.shape != coded.shape:
            raise Corrupt(f"{name!r} has {values.shape} values and {coded.shape} positions")
        if coded.dtype.kind == "i":
            check_positions(coded, old.bits.size)
            positions = coded
        else:
            positions = positions_of_gaps(coded, old.bits.size)
        bits = old.bits.copy()
        bits[positions] = np.ascontiguousarray(values).view(np.uint16)
        new[name] = old.array(bits)
    return new


def to_frame(update: Mapping[str, object], base: Tensors) -> bytes:
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
    data: bytes | bytearray | memoryview, base: Tensors, *, index: Index = "gap"
) -> dict[str, np.ndarray]:
    """Convert patches to an update; see `to_frame`.

    Parameters
    ----------
    data : bytes-like
        Frames of named tensors.
    base, index
        See `encode`.

    Raises
    ------
    FormatError
        If a frame is damaged or is no patch.
    ParameterError
        If `base` lacks a tensor, or its tensor is not the one that was patched.
    TypeError
        If a tensor has another dtype.
    """
    return encode(from_frames(data, base), base, index=index)
