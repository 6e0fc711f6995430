"""Changed elements of tensors by name, which the messages of several peers contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec import api
from gcodec.arrays.bit_patterns import bits_of
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import NUMPY_DTYPES, inspect
from gcodec.entropy.positions import rise
from gcodec.errors import Corrupt, ParameterError, Unsupported, brief
from gcodec.interop.objects import object_bytes, require_mapping
from gcodec.limits import NO_LIMITS
from gcodec.patch.tensors import apply_patch, encode_patch

_GAP_DTYPES = np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)

Tensors = Mapping[str, Any]
"""Arrays by name."""


class Pattern(NamedTuple):
    """A tensor as bit patterns.

    Attributes
    ----------
    bits : (n,) unsigned array
        Possibly a view of the caller's memory.
    dtype : str
    shape : tuple of int
    """

    bits: np.ndarray
    dtype: str
    shape: tuple[int, ...]

    def array(self, bits: np.ndarray) -> np.ndarray:
        """Return other bit patterns as an array of this dtype and shape."""
        return bits.view(NUMPY_DTYPES[self.dtype]).reshape(self.shape)


class Changed(NamedTuple):
    """The changed elements of a tensor.

    Attributes
    ----------
    name : str
    positions : (k,) int64 array
        Positions in the flattened tensor, in increasing order; k is at least 1.
    new, old : Pattern
        The new tensor and the base.
    """

    name: str
    positions: np.ndarray
    new: Pattern
    old: Pattern


def pattern_of(x: TensorLike, name: str, peer: str) -> Pattern:
    """Return the bit patterns of an array on the host.

    Raises
    ------
    TypeError
        If the object is no array, lies on a device, or has an unsupported dtype.
    """
    source = inspect(x, name)
    source.check_on_host(peer)
    tensor = source.read(all_dtypes=True, segments=True)
    return Pattern(bits_of(tensor.values, tensor.dtype), tensor.dtype, tensor.shape)


def base_of(base: Tensors, name: str, peer: str) -> Pattern:
    """Return the base of a tensor.

    Raises
    ------
    ParameterError
        If there is none of this name.
    """
    return pattern_of(_named(base, name), f"base[{name!r}]", peer)


def equal_base_of(base: Tensors, name: str, peer: str, dtype: object, shape: object) -> Pattern:
    """Return the base of a tensor of this dtype and shape; see `base_of`."""
    old = base_of(base, name, peer)
    if (old.dtype, old.shape) != (dtype, shape):
        needed = brief(f"{dtype} of shape {shape}")
        raise ParameterError(f"base[{name!r}] is {old.dtype} of {old.shape}: must be {needed}")
    return old


def _named(base: Tensors, name: str) -> Any:
    require_mapping("base", base)
    if name not in base:
        raise ParameterError(f"base: has no tensor {name!r}, which changes")
    return base[name]


def _differ(new: Pattern, old: Pattern) -> np.ndarray:
    """Return which elements have other bits."""
    return np.asarray(new.bits != old.bits)


def check_names(new: Tensors) -> None:
    """Raise TypeError unless an argument is a mapping whose keys are texts."""
    require_mapping("new", new)
    for name in new:
        if not isinstance(name, str):
            raise TypeError(f"new has the key {name!r}: must be a str, the name of a tensor")


def changes_of(
    new: Tensors,
    base: Tensors,
    peer: str,
    differ: Callable[[Pattern, Pattern], np.ndarray] | None = None,
) -> Iterator[Changed]:
    """Yield the changed elements of each tensor that changes.

    Parameters
    ----------
    new, base : mapping of str to array
    peer : str
        Name of the peer, for error messages.
    differ : callable, optional
        Returns which elements of two tensors differ, as (n,) bool. Default: those of other bits.

    Raises
    ------
    ParameterError
        If a tensor has no base of its dtype and shape.
    TypeError
        If an argument is no mapping, or a name is no text; see also `pattern_of`.
    """
    check_names(new)
    for name, x in new.items():
        pattern = pattern_of(x, f"new[{name!r}]", peer)
        old = equal_base_of(base, name, peer, pattern.dtype, pattern.shape)
        positions = np.flatnonzero((differ or _differ)(pattern, old))
        if positions.size:
            yield Changed(name, positions, pattern, old)


def gaps_of(positions: np.ndarray) -> np.ndarray:
    """Return the elements between changed ones, as the narrowest of uint16, uint32 and uint64."""
    gaps = np.diff(positions, prepend=-1) - 1
    return gaps.astype(next(d for d in _GAP_DTYPES if int(gaps.max()) <= np.iinfo(d).max))


def positions_of_gaps(gaps: np.ndarray, n: int) -> np.ndarray:
    """Return the positions with these gaps, as int64.

    Raises
    ------
    Corrupt
        If a position is not below n.
    """
    if gaps.size > n or (gaps.size and int(gaps.max()) >= n):
        raise Corrupt(f"{gaps.size} positions do not fit {n} elements")
    positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    check_positions(positions, n)  # which a sum that wraps around does not pass either
    return positions


def check_positions(positions: np.ndarray, n: int) -> None:
    """Raise `Corrupt` unless positions rise from 0 to at most n − 1."""
    if not rise(positions, n):
        raise Corrupt(f"the positions do not rise from 0 to {n - 1}")


def to_frames(new: Tensors, base: Tensors) -> bytes:
    """Return patches of the tensors that differ from their base, as frames without gaps."""
    return b"".join(encode_patch(x, base[name], name=name) for name, x in new.items())


def from_frames(data: bytes | bytearray | memoryview, base: Tensors) -> Tensors:
    """Return the new tensors of patches, in the libraries of their bases.

    Raises
    ------
    FormatError
        If the frames are damaged, have no names, or are no patches.
    ParameterError
        If a base is missing or is another tensor.
    """
    new: dict[str, Any] = {}
    for frame in api.iter_frames(object_bytes(data).data, limits=NO_LIMITS):
        name = frame.name
        if name is None or not frame.codec.needs_base:
            raise Unsupported("the message contains frames that are no patches of named tensors")
        if name in new:
            raise Corrupt(f"{name!r} occurs twice")
        new[name] = apply_patch(frame, _named(base, name))
    return new
