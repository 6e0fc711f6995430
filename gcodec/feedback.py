"""Error feedback: what a codec left out of one step's gradient is added to the next one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays import (
    NonFinite,
    Tensor,
    check_corrected,
    check_left,
    check_nonfinite,
    intake,
    with_policy,
)
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import FormatError, ParameterError
from gcodec.frame import Frame
from gcodec.kernels import signs
from gcodec.kernels.device import beside, device_of, host
from gcodec.kernels.memory import empty_beside
from gcodec.kernels.philox import check_seed
from gcodec.kernels.reduce import all_finite_corrected
from gcodec.kinds import check_number
from gcodec.limits import Limits
from gcodec.policy import Policy
from gcodec.residuals import Residuals
from gcodec.scalars import once, settled
from gcodec.seeds import derive_seed
from gcodec.views import working_on
from gcodec.wire import encode_name

_RESIDUAL, _STEP, _PRIOR = "residual:", "step:", "prior:"  # prefixes in a state_dict
_MOST = 1 << 62  # steps
_NO_LIMITS = Limits(1 << 62, 1 << 62)


class L1Norms(NamedTuple):
    """Sums of the magnitudes of one tensor, in float64 by the fixed order.

    Attributes
    ----------
    gradient : float
        Of the last step's gradient.
    residual : float
        Of what that step left.
    """

    gradient: float
    residual: float


class Memory(NamedTuple):
    """What a `Feedback` keeps of one tensor; see `Feedback.memory`.

    Attributes
    ----------
    residual : float32 array or None
        The very array, which is not to be written to; None where no gradient was compressed yet.
    step : int
    prior : tuple or None
        Last symbols, and the codec whose they are.
    """

    residual: np.ndarray | None
    step: int
    prior: tuple[Codec, Any] | None


class Feedback:
    """Residual memory around a codec, per tensor name.

    Each call of `compress` sends C(g + decay·e) for the gradient g and the residual e, and keeps
    what was left: e ← g + decay·e − decoded. So with decay 1 the sum of what was sent and the
    residual is the sum of the gradients. Source: Seide et al. 2014; Karimireddy et al. 2019.

    A step reads e from one array and writes it to another, which then change places: so there is a
    float32 array for each tensor, and one more for each number of elements.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        See `gcodec.parse`. A policy is asked at every step, and what it says depends on name,
        shape and dtype only: a restart changes nothing, another dtype may change the codec.
    decay : float
        From 0 (no memory) to 1.
    seed : int
        Of the run, 0 to 2**64 - 1; each message's own is derived from it, step, rank and name.
    rank : int
        Of this worker.
    nonfinite : {"raise", "zero", "propagate"}
        NaN and Inf are refused before anything changes, replaced by 0, or left to the codec.
    track : bool
        Whether to keep what `l1_norms` reports, which costs a pass over each gradient.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> feedback = gcodec.Feedback("mxnet-2bit:threshold=0.5")
    >>> gradient = np.array([0.2, -0.3], np.float32)
    >>> [gcodec.decode(feedback.compress("w", gradient)).tolist() for _ in range(3)]
    [[0.0, 0.0], [0.0, -0.5], [0.5, 0.0]]
    """

    def __init__(
        self,
        codec: Any,
        *,
        decay: float = 1.0,
        seed: int = 0,
        rank: int = 0,
        nonfinite: NonFinite = "raise",
        track: bool = False,
    ) -> None:
        self.codec: Codec | Policy = codec if isinstance(codec, Policy) else parse(codec)
        self.decay = check_number("decay", decay, "a number from 0 to 1")
        if not 0 <= decay <= 1:  # NaN fails as well
            raise ParameterError.of("decay", decay, "a number from 0 to 1")
        check_nonfinite(nonfinite)
        self.seed = check_seed(seed)
        self.rank = check_seed(rank, "rank")
        self.nonfinite: NonFinite = nonfinite
        self.track = track
        self._gradients: dict[str, float] = {}  # their L1 norms
        self._residuals = Residuals()  # in the shape of the tensor
        self._steps: dict[str, int] = {}
        self._priors: dict[str, tuple[Codec, Any]] = {}  # last symbols, and whose they are

    def compress(self, name: str, grad: Any) -> bytes:
        """Compress one step's gradient of one tensor.

        Parameters
        ----------
        name : str
            Of the tensor; its residual and step count are kept under it.
        grad : array
            See `gcodec.encode`; of the same shape at every step.

        Returns
        -------
        bytes
            A frame that bears the name.

        Raises
        ------
        ParameterError, TypeError
            As all else that may be raised, an interrupt or where memory fails, it leaves the
            residual and the step count as they were.
        """
        encode_name(name)  # refuses what a frame cannot bear before anything changes
        with working_on(grad), once():
            return self._compress(name, intake(grad, "grad"))

    def _compress(self, name: str, tensor: Tensor) -> bytes:
        values, known = tensor.values, self._residuals.get(name)
        if known is not None and known.shape != tensor.shape:
            raise ParameterError.of("grad.shape", tensor.shape, f"{known.shape} for {name!r}")
        codec = self._codec_for(name, tensor)
        codec._check_device(values)
        if known is None:
            residual = self._residuals.zeros(values.size, values)
        else:
            residual = beside(known, values).reshape(-1)
        left, decay = self._residuals.room(values.size, values), np.float32(self.decay)
        late = codec.refuses_nonfinite or codec.keeps_nonfinite
        if self.nonfinite == "zero" and device_of(values) is not None:
            late = False  # it would have to wait
        if not late:
            tensor = self._finite(tensor, residual, decay)
        step = self._steps.get(name, 0)
        seed = derive_seed(self.seed, name=name, step=step, rank=self.rank)
        before, prior = self._priors.get(name, (codec, None))
        if type(before) is not type(codec):  # a codec knows what its own parameters change
            prior = None
        try:
            symbols = codec._quantize_residual(tensor, residual, decay, seed, prior, left)
            if late and codec.keeps_nonfinite and self.nonfinite != "propagate":
                check_left(left, tensor.values, residual, decay, "grad")
            payload = codec._pack(symbols).settled(data_too=True)
            frame = Frame(payload.codec, tensor.dtype, tensor.shape, payload, name).to_bytes()
        except ParameterError:
            finite = self._finite(tensor, residual, decay)  # says it better, if that is the reason
            if not late or finite is tensor:
                raise
            return self._compress(name, finite)
        if self.track:
            self._gradients[name] = _l1_norm(tensor.values)
        self._residuals.replace(name, residual, left.reshape(tensor.shape))
        self._steps[name] = step + 1
        if codec.uses_prior:
            self._priors[name] = codec, settled(symbols)
        return frame

    def _codec_for(self, name: str, tensor: Tensor) -> Codec:
        if isinstance(self.codec, Policy):
            codec = self.codec.codec(name, tensor.shape, tensor.dtype)
        else:
            codec = self.codec
        return codec._of_shape(tensor.shape)

    def _finite(self, tensor: Tensor, residual: np.ndarray, decay: np.float32) -> Tensor:
        """Apply `nonfinite`, and refuse a gradient that makes the residual infinite for good."""
        if self.nonfinite == "propagate":
            return tensor
        if self.nonfinite == "zero":
            on_host = device_of(residual) is None
            if on_host and all_finite_corrected(tensor.values, residual, decay):
                return tensor
            tensor = with_policy(tensor, "zero")
        check_corrected(tensor.values, residual, decay, "grad")
        return tensor

    def residual(self, name: str) -> np.ndarray:
        """Return what is still unsent of a tensor: a read-only float32 array in its shape.

        No later step changes it. On a device it can be written to, but should not.

        Raises
        ------
        ParameterError
            If no gradient of that name was compressed yet.
        """
        if name not in self._residuals:
            raise ParameterError.of("name", name, "one that was compressed before")
        view = self._residuals.lend(name).view()
        if device_of(view) is None:
            view.flags.writeable = False
        return view

    def memory(self, name: str) -> Memory:
        """Return what is kept of a tensor, for `restore`; see `forget`.

        Nothing is copied: the next step writes to another array.
        """
        residual = self._residuals.lend(name) if name in self._residuals else None
        return Memory(residual, self._steps.get(name, 0), self._priors.get(name))

    def restore(self, name: str, memory: Memory) -> None:
        """Return to a `memory` of the tensor: what was compressed since was not sent.

        So it is where a step is given up, as when the gradient of another worker held Inf.
        """
        self._residuals.restore(name, memory.residual)
        if memory.residual is None:
            self._steps.pop(name, None)
        else:
            self._steps[name] = memory.step
        if memory.prior is None:
            self._priors.pop(name, None)
        else:
            self._priors[name] = memory.prior

    def forget(self, name: str, memory: Memory) -> None:
        """Take back a `memory` of the tensor that no one uses any more, once.

        A later step may write to its array, which saves fresh memory.
        """
        if memory.residual is not None:
            self._residuals.give_back(name, memory.residual)

    def l1_norms(self, name: str) -> L1Norms:
        """Return the L1 norms of a tensor's last gradient and of what is still unsent of it.

        Where decay is below 1 the one should stay a small multiple of the other (Chen et al.,
        "Convert, compress, correct", arXiv 2203.09044, Fig. 3).

        Raises
        ------
        ParameterError
            If no gradient of that name was compressed yet by this object, with ``track=True``.
        """
        if name not in self._gradients:
            allowed = "one that was compressed before, with track=True"
            raise ParameterError.of("name", name, allowed)
        return L1Norms(self._gradients[name], _l1_norm(self._residuals[name].reshape(-1)))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return residuals and step counts as plain arrays, copied.

        Returns
        -------
        dict
            ``"residual:NAME"``: float32 array in the tensor's shape; ``"step:NAME"``: int64 scalar
            array; and where the codec goes on from its last message, ``"prior:NAME"``: uint8
            array, a frame of that.
        """
        kept = self._residuals.items()
        state = {_RESIDUAL + name: host(array).copy() for name, array in kept}
        for name, step in self._steps.items():
            state[_STEP + name] = np.array(step, np.int64)
        for name, (codec, symbols) in self._priors.items():
            payload = codec.pack(symbols)
            frame = Frame(payload.codec, "float32", self._residuals[name].shape, payload, name)
            state[_PRIOR + name] = np.frombuffer(frame.to_bytes(), np.uint8).copy()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace residuals, step counts and priors by those of `state_dict`.

        Raises
        ------
        ParameterError
            If `state` is not such a dict; nothing is then replaced.
        """
        residuals: dict[str, np.ndarray] = {}
        steps: dict[str, int] = {}
        priors: dict[str, tuple[Frame, Any]] = {}
        told = isinstance(state, Mapping) and all(isinstance(key, str) for key in state)
        for key, value in state.items() if told else [(repr(state), None)]:
            array = np.asarray(value)
            if key.startswith(_RESIDUAL) and array.dtype == np.float32:
                kept = empty_beside(array.size, np.float32, None).reshape(array.shape)
                kept[...] = array
                residuals[key.removeprefix(_RESIDUAL)] = kept
            elif key.startswith(_STEP) and array.shape == () and array.dtype.kind in "iu":
                steps[key.removeprefix(_STEP)] = int(array)
            elif key.startswith(_PRIOR) and array.ndim == 1 and array.dtype == np.uint8:
                priors[key.removeprefix(_PRIOR)] = _prior_of(key, array)
            else:
                allowed = "residual:NAME, step:NAME or prior:NAME of a state_dict"
                raise ParameterError.of("state", key, allowed)
        if residuals.keys() != steps.keys() or not all(0 <= n < _MOST for n in steps.values()):
            raise ParameterError("state: each name must have a residual and a step count")
        for name, (frame, _) in priors.items():
            if name not in residuals or frame.shape != residuals[name].shape:
                raise ParameterError.of("state", _PRIOR + name, "of a residual of its shape")
        self._residuals, self._steps, self._gradients = Residuals(residuals), steps, {}
        self._priors = {name: (frame.codec, symbols) for name, (frame, symbols) in priors.items()}


def _prior_of(key: str, array: np.ndarray) -> tuple[Frame, Any]:
    """Return a frame of a state_dict, and its symbols."""
    try:
        frame = Frame.from_bytes(array.tobytes(), limits=_NO_LIMITS)
        return frame, frame.codec.unpack(frame.payload, frame.shape)
    except FormatError as error:
        raise ParameterError(f"state: {key} is no frame: {error}") from error


def _l1_norm(values: np.ndarray) -> float:
    _, total = signs.quantize(values, squares=False)
    return float(total)
