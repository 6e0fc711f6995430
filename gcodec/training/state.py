"""State across steps as plain arrays, for files of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gcodec.arrays.intake import intake, writable
from gcodec.errors import ParameterError
from gcodec.wire.primitives import encode_name


def taken(gradients: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take in arrays as float32, in the shapes that are known of them.

    Returns
    -------
    dict of str to float32 array
        C-contiguous; the caller's own memory where that already was so.

    Raises
    ------
    ParameterError, TypeError
    """
    found = {}
    check_mapping("gradients", gradients)
    for name, gradient in gradients.items():
        encode_name(name)  # as text it is in a state_dict, and in frames
        tensor = intake(gradient, name)
        if name in known and known[name].shape != tensor.shape:
            raise ParameterError.of(f"{name}.shape", tensor.shape, f"{known[name].shape}")
        found[name] = tensor.values.reshape(tensor.shape)
    return found


def check_mapping(name: str, value: object) -> None:
    """Raise `ParameterError` unless a value is a mapping."""
    if not isinstance(value, Mapping):
        raise ParameterError.of(name, value, "a mapping of names to arrays")


def movable(
    parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the parameters, checked: writable float32 of the gradients' names and shapes.

    Raises
    ------
    ParameterError, TypeError
    """
    check_mapping("parameters", parameters)
    check_mapping("gradients", gradients)
    if list(gradients) != list(parameters):
        allowed = f"of {list(parameters)}, in this order"
        raise ParameterError.of("gradients", list(gradients), allowed)
    return {
        name: writable(parameters[name], name, "float32", np.shape(gradient))
        for name, gradient in gradients.items()
    }


def written(**kinds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays of several kinds by name as one dict with the keys ``"KIND:NAME"``, copied."""
    return {
        f"{kind}:{name}": np.array(array)
        for kind, arrays in kinds.items()
        for name, array in arrays.items()
    }


def read(state: Mapping[str, Any], *kinds: str) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each kind, copied.

    Raises
    ------
    ParameterError
        If a key is of no such kind, or is no text.
    """
    check_mapping("state", state)
    found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in kinds}
    for key, value in state.items():
        kind, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
        if kind not in found:
            allowed = " or ".join(f"{kind}:NAME" for kind in kinds) + " of a state_dict"
            raise ParameterError.of("state", key, allowed)
        found[kind][name] = np.array(value)
    return list(found.values())


def check_alike(*arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `ParameterError` unless these are float32 arrays of the same names and shapes."""
    first, *others = arrays
    for other in others:
        if {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in first.items()}:
            raise ParameterError("state: each name must have all of its arrays, of one shape")
    if any(array.dtype != np.float32 for kind in arrays for array in kind.values()):
        raise ParameterError("state: its arrays must be float32")


def shown(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a read-only view of the array of a name, or raise `ParameterError`."""
    if name not in arrays:
        raise ParameterError.of("name", name, "one that was compressed before")
    view = arrays[name].view()
    view.flags.writeable = False
    return view
