"""The state of a `Feedback` as plain arrays, by keys such as ``residual:NAME``, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gcodec.arrays.frameworks import FAILURES
from gcodec.codec import Codec, Symbols
from gcodec.errors import FormatError, ParameterError
from gcodec.feedback.states import Memory, Tensors, TensorState
from gcodec.frame import Frame
from gcodec.limits import NO_LIMITS
from gcodec.runtime.device import host

_RESIDUAL, _STEP, _PRIOR = "residual:", "step:", "prior:"  # prefixes of the keys of a state_dict
_OF_RESIDUAL = "of a residual of its shape"  # what a prior must be
_MAX_STEPS = 1 << 62


def write_state(tensors: Tensors) -> dict[str, np.ndarray]:
    """Return the states of tensors as arrays of their own; see `Feedback.state_dict`."""
    residuals: dict[str, np.ndarray] = {}
    steps: dict[str, np.ndarray] = {}
    priors: dict[str, np.ndarray] = {}
    for name in list(tensors.states):
        with tensors.lock(name):
            state = tensors.states.get(name)
            if state is None:  # undone meanwhile
                continue
            residuals[_RESIDUAL + name] = host(state.array).copy()
        # Later steps replace the state, and do not change this one.
        steps[_STEP + name] = np.array(state.memory.step, np.int64)
        if state.memory.prior is not None:
            codec, symbols = state.memory.prior
            payload = codec.pack(symbols)
            frame = Frame(payload.codec, "float32", state.array.shape, payload, name)
            priors[_PRIOR + name] = np.frombuffer(frame.to_bytes(), np.uint8).copy()
    return residuals | steps | priors


def read_state(state: Mapping[str, object]) -> Tensors:
    """Return the tensors of a state; see `Feedback.load_state_dict`."""
    residuals: dict[str, np.ndarray] = {}
    steps: dict[str, int] = {}
    priors: dict[str, np.ndarray] = {}
    allowed = "residual:NAME of float32, step:NAME of an integer, or prior:NAME of bytes"
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise ParameterError.of("state", state, allowed)
    for key, value in state.items():
        try:
            array = np.asarray(value)
        except FAILURES as error:  # such as a tensor on a device
            raise ParameterError(f"state: {key} cannot be read: {error}") from error
        if key.startswith(_RESIDUAL) and array.dtype == np.float32:
            residuals[key.removeprefix(_RESIDUAL)] = array.copy()
        elif key.startswith(_STEP) and array.shape == () and array.dtype.kind in "iu":
            steps[key.removeprefix(_STEP)] = int(array)
        elif key.startswith(_PRIOR) and array.ndim == 1 and array.dtype == np.uint8:
            priors[key.removeprefix(_PRIOR)] = array
        else:
            raise ParameterError.of("state", key, allowed)
    for name, step in steps.items():
        if not 0 <= step < _MAX_STEPS:
            allowed = "an integer from 0 to below 2**62"
            raise ParameterError.of(f"state[{_STEP + name!r}]", step, allowed)
    if residuals.keys() != steps.keys():
        raise ParameterError("state: each name must have a residual and a step count")
    if unknown := priors.keys() - residuals.keys():
        raise ParameterError.of("state", _PRIOR + min(unknown), _OF_RESIDUAL)
    states = {}
    for name, residual in residuals.items():
        prior = _prior_of(name, priors[name], residual.shape) if name in priors else None
        states[name] = TensorState(Memory(residual, steps[name], prior))
    return Tensors(states)


def _prior_of(name: str, array: np.ndarray, shape: tuple[int, ...]) -> tuple[Codec, Symbols]:
    """Return the codec and the symbols of a prior in a state_dict, whose residual has a shape."""
    try:
        frame = Frame.from_bytes(array.tobytes(), limits=NO_LIMITS)
        if frame.shape != shape:  # which bounds the memory that symbols take
            raise ParameterError.of("state", _PRIOR + name, _OF_RESIDUAL)
        return frame.codec, frame.codec.unpack(frame.payload, shape)
    except FormatError as error:
        raise ParameterError(f"state: {_PRIOR + name} is not a frame: {error}") from error
