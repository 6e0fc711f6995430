"""Checks of gradients and parameters by name, and state as plain arrays for checkpoint files."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import inspect
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_mapping
from gcodec.wire.primitives import encode_name


def as_float32(
    gradients: Mapping[str, TensorLike], previous: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Convert gradients to float32 arrays.

    Parameters
    ----------
    gradients : mapping of str to array
        See `gcodec.encode`.
    previous : mapping of str to array
        Arrays of an earlier step. A gradient of the same name must have the same shape.

    Returns
    -------
    dict of str to float32 array
        C-contiguous arrays, which share the caller's memory where no conversion is needed.

    Raises
    ------
    ParameterError, TypeError
        If `gradients` is no mapping, or one of its names or arrays is invalid.
    """
    arrays = {}
    check_mapping("gradients", gradients)
    for name, gradient in gradients.items():
        encode_name(name)  # a state_dict and a frame store the name as text
        tensor = inspect(gradient, name).read()
        if name in previous and previous[name].shape != tensor.shape:
            raise ParameterError.of(f"{name}.shape", tensor.shape, f"{previous[name].shape}")
        arrays[name] = tensor.values.reshape(tensor.shape)
    return arrays


def writable_parameters(
    parameters: Mapping[str, np.ndarray], gradients: Mapping[str, TensorLike]
) -> dict[str, np.ndarray]:
    """Return the parameters, checked to be writable float32 arrays that match the gradients.

    Raises
    ------
    ParameterError, TypeError
        If names, their order, shapes or dtypes differ, or an array is read-only.
    """
    check_mapping("parameters", parameters)
    check_mapping("gradients", gradients)
    if list(gradients) != list(parameters):
        allowed = f"the names {list(parameters)}, in this order"
        raise ParameterError.of("gradients", list(gradients), allowed)
    return {
        name: inspect(parameters[name], name).target(
            "float32", inspect(gradient, name).description()[1]
        )
        for name, gradient in gradients.items()
    }


def check_finite(quantity: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `ParameterError` unless a quantity of each tensor, such as its step, is finite."""
    for name, array in arrays.items():
        if not all_finite(array.reshape(-1)):
            raise ParameterError(f"gradients: the {quantity} of {name!r} must not exceed float32")


def pack(**groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy groups of named arrays into one dict with the keys ``"GROUP:NAME"``."""
    return {
        f"{group}:{name}": np.array(array)
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def digest(**groups: Mapping[str, np.ndarray]) -> bytes:
    """Return a hexadecimal digest of groups of named arrays, with their shapes."""
    hashed = hashlib.blake2b(digest_size=16)
    for group, arrays in sorted(groups.items()):
        for name, array in sorted(arrays.items()):
            hashed.update(f"{group}:{name} {array.shape} ".encode())
            hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.hexdigest().encode()


def shared(
    parameters: Mapping[str, np.ndarray],
    compared: tuple[str, ...] | None = None,
    **settings: object,
) -> bytes:
    """Return what all ranks must share: a digest of the parameters, and settings as JSON.

    The result is empty if the ranks have compared parameters of these names before, `compared`.
    """
    if tuple(parameters) == compared:
        return b""
    return digest(parameters=parameters) + b"/" + json.dumps(settings).encode()


def place_of(communicator: Communicator) -> dict[str, np.ndarray]:
    """Return the group of arrays that states the rank of a state, and its number of ranks."""
    return {key: np.array(getattr(communicator, key), np.int64) for key in ("rank", "size")}


def check_place(place: Mapping[str, np.ndarray], communicator: Communicator, advice: str) -> None:
    """Raise `ParameterError` unless a state is that of this rank and this number of ranks.

    States of former versions lack the group that `place_of` returns. The message ends with the
    advice.
    """
    if not place:
        return
    try:
        saved = {key: operator.index(place[key]) for key in ("rank", "size")}
    except (KeyError, TypeError):
        raise ParameterError("state: place:rank and place:size must be integers") from None
    check_same_rank(saved, communicator.rank, communicator.size, advice)


def check_same_rank(saved: Mapping[str, int], rank: int, size: int, advice: str = "") -> None:
    """Raise `ParameterError` unless a state_dict is that of a rank of a group of this size.

    The message ends with the advice.
    """
    for key, expected, unit in (("size", size, " ranks"), ("rank", rank, "")):
        if saved[key] != expected:
            allowed = f"{expected}{unit}, because each rank has its own state{advice}"
            raise ParameterError.of(f"state[{key!r}]", saved[key], allowed)


def unpack(state: Mapping[str, object], *groups: str) -> list[dict[str, np.ndarray]]:
    """Return copies of the arrays of each group; the inverse of `pack`.

    Raises
    ------
    ParameterError
        If a key is not text, or names no such group.
    """
    check_mapping("state", state)
    unpacked: dict[str, dict[str, np.ndarray]] = {group: {} for group in groups}
    for key, value in state.items():
        group, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
        if group not in unpacked:
            allowed = " or ".join(f"{group}:NAME" for group in groups) + " of a state_dict"
            raise ParameterError.of("state", key, allowed)
        unpacked[group][name] = np.array(value)
    return list(unpacked.values())


def check_matching(first: Mapping[str, np.ndarray], *groups: Mapping[str, np.ndarray]) -> None:
    """Raise `ParameterError` unless all groups have float32 arrays of equal names and shapes."""
    shapes = {name: array.shape for name, array in first.items()}
    for group in groups:
        if {name: array.shape for name, array in group.items()} != shapes:
            raise ParameterError("state: all groups of arrays must have the same names and shapes")
    if any(array.dtype != np.float32 for group in (first, *groups) for array in group.values()):
        raise ParameterError("state: all arrays must be float32")


def view(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a read-only view of the named array, or raise `ParameterError`."""
    if name not in arrays:
        raise ParameterError.of("name", name, "the name of a tensor that was compressed before")
    array = arrays[name].view()
    array.flags.writeable = False
    return array
