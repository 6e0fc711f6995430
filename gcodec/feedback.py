"""Error feedback: what a codec left out of one step's gradient is added to the next one's."""

from __future__ import annotations

import copy
import enum
import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.intake import (
    NonFinite,
    Tensor,
    check_corrected,
    check_left,
    check_nonfinite,
    intake,
    with_policy,
)
from gcodec.arrays.protocols import working_on
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import FormatError, ParameterError
from gcodec.frame import Frame, check_key
from gcodec.kernels.bits import signs
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import all_finite_corrected
from gcodec.limits import Limits
from gcodec.policy import Policy
from gcodec.runtime.deferred import once, settled
from gcodec.runtime.device import Device, beside, device_of, host
from gcodec.runtime.memory import clear, empty_beside
from gcodec.wire.kinds import check_number
from gcodec.wire.primitives import encode_name


def derive_seed(seed: int, *, name: str, step: int = 0, rank: int = 0) -> int:
    """Derive the seed of one tensor's message.

    Parameters
    ----------
    seed : int
        Of the run, 0 to 2**64 - 1.
    name : str
        Of the tensor.
    step, rank : int
        From 0 to 2**64 - 1.

    Returns
    -------
    int
        The first 8 bytes, little-endian, of BLAKE2b over seed, step and rank as u64 and the name.
    """
    numbers = b"".join(check_seed(value).to_bytes(8, "little") for value in (seed, step, rank))
    digest = hashlib.blake2b(numbers + name.encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class SpareArrays:
    """Float32 arrays that nobody reads, by device and number of elements.

    A step reads one array and writes another. The array that it has read then serves the next
    tensor of as many elements, so there is one array more than there are tensors of a size. Any
    number of threads may use one object: an array is handed to one of them alone.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Device | None, int], list[np.ndarray]] = {}

    def take(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of any content, on the device of another array."""
        try:
            # A list hands out each of its items once, to whichever thread asks first.
            return self._arrays[device_of(beside), size].pop()
        except (KeyError, IndexError):
            return empty_beside(size, np.float32, beside)

    def take_zeros(self, size: int, beside: Any = None) -> np.ndarray:
        """Return a (size,) array of zeros, on the device of another array."""
        array = self.take(size, beside)
        clear(array)
        return array

    def give(self, array: np.ndarray) -> None:
        """Let an array be written to; nobody may read it any more."""
        self._arrays.setdefault((device_of(array), array.size), []).append(array.reshape(-1))

    def counts(self) -> list[int]:
        """Return the number of spare arrays of each device and size."""
        return [len(arrays) for arrays in self._arrays.values()]


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


class _Use(enum.Flag):
    """Readers of the array of a residual other than the steps.

    A step never writes to the array that it reads. Once it has read one that nobody else uses,
    another step may write to it.
    """

    OWN = 0
    SHOWN = 1  # callers of `residual`, or a copy of the object: for as long as they like
    BORROWED = 2  # who asked for a `Memory`, until `Feedback.forget`


class _TensorState(NamedTuple):
    """All that is kept of one tensor.

    One assignment replaces it, so no interrupt, fork or thread finds half of a step.
    """

    memory: Memory
    use: _Use = _Use.OWN
    gradient_norm: float | None = None

    @property
    def array(self) -> np.ndarray:
        """The residual."""
        assert self.memory.residual is not None
        return self.memory.residual


class _Tensors:
    """States by name, a lock for each name, and spare arrays.

    Only who holds the lock of a name reads or replaces its state.
    """

    def __init__(self, states: Mapping[str, _TensorState] | None = None) -> None:
        self.states: dict[str, _TensorState] = dict(states or {})
        self.spares = SpareArrays()
        self._locks: dict[tuple[int, str], threading.Lock] = {}
        self._shown: dict[int, np.ndarray] = {}  # borrowed ones that are no state's any more

    def lock(self, name: str) -> threading.Lock:
        """Return the lock of a name.

        A forked child has locks of its own: no thread there would release those of the parent.
        """
        key = os.getpid(), name
        found = self._locks.get(key)
        # Atomic: of several threads that are the first, all get the same lock.
        return self._locks.setdefault(key, threading.Lock()) if found is None else found

    def replace(self, name: str, read: np.ndarray, state: _TensorState) -> None:
        """Set the state that a step has made of a residual; that array is spare then."""
        before = self.states.get(name)
        self.states[name] = state  # first: an interrupt may come at any time
        if before is not None and before.use is not _Use.OWN:
            self._drop(before)
        elif device_of(read) is device_of(state.array):
            self.spares.give(read)

    def show(self, name: str) -> _TensorState | None:
        """Return the state of a tensor, to whose array no step will write."""
        if (state := self.states.get(name)) is None:
            return None
        state = self.states[name] = state._replace(use=state.use | _Use.SHOWN)
        return state

    def lend(self, name: str) -> Memory:
        """Return the memory of a tensor, to whose array no step writes before `take_back`."""
        if (state := self.states.get(name)) is None:
            return Memory(None, 0, None)
        self.states[name] = state._replace(use=state.use | _Use.BORROWED)
        return state.memory

    def restore(self, name: str, memory: Memory) -> None:
        """Return to a memory that was lent, and still is."""
        before = self.states.get(name)
        if memory.residual is None:
            self.states.pop(name, None)
        else:
            use, norm = _Use.BORROWED, None
            if before is not None:
                norm = before.gradient_norm
                if before.array is memory.residual:
                    use |= before.use
            if self._shown.pop(id(memory.residual), None) is not None:
                use |= _Use.SHOWN
            self.states[name] = _TensorState(memory, use, norm)
        if before is not None and before.array is not memory.residual:
            self._drop(before)

    def take_back(self, name: str, array: np.ndarray) -> None:
        """Take back an array that was lent."""
        state = self.states.get(name)
        if state is not None and state.array is array:
            self.states[name] = state._replace(use=state.use & ~_Use.BORROWED)
        elif self._shown.pop(id(array), None) is None:
            self.spares.give(array)

    def _drop(self, state: _TensorState) -> None:
        """Let go of a state that is none any more."""
        if state.use is _Use.OWN:
            self.spares.give(state.array)
        elif state.use == _Use.SHOWN | _Use.BORROWED:
            self._shown[id(state.array)] = state.array


class Feedback:
    """Residual memory around a codec, per tensor name.

    Each call of `compress` sends C(g + decay·e) for the gradient g and the residual e, and keeps
    what was left: e ← g + decay·e − decoded. So with decay 1 the sum of what was sent and the
    residual is the sum of the gradients. Source: Seide et al. 2014; Karimireddy et al. 2019.

    A step reads e from one array and writes it to another, which then change places: so there is a
    float32 array for each tensor, and one more for each number of elements.

    Any number of threads may use one object. Calls for the same name take turns, and each is one
    step of that name, in some order; calls for different names run side by side. A pickle or a
    copy has the state of each name, and goes its own way from there.

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
        self._tensors = _Tensors()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, and the state of each tensor, for a pickle or a copy."""
        states = {}
        for name in list(self._tensors.states):
            with self._tensors.lock(name):
                if (shown := self._tensors.show(name)) is not None:
                    states[name] = shown
        return {**self.__dict__, "_tensors": states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _tensors=_Tensors(state["_tensors"]))

    def compress(self, name: str, grad: Any, *, key: bytes | None = None) -> bytes:
        """Compress one step's gradient of one tensor.

        Parameters
        ----------
        name : str
            Of the tensor; its residual and step count are kept under it.
        grad : array
            See `gcodec.encode`; of the same shape at every step.
        key : bytes, optional
            1 to 64 bytes; the frame then bears a tag that only this key can make, see
            `gcodec.encode`. The object does not keep the key.

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
        check_key(key)
        with working_on(grad), once():
            tensor = intake(grad, "grad")
            tensors = self._tensors  # a call that runs while others are loaded belongs to these
            with tensors.lock(name):
                return self._compress(tensors, name, tensor, key)

    def _compress(self, tensors: _Tensors, name: str, tensor: Tensor, key: bytes | None) -> bytes:
        values, before = tensor.values, tensors.states.get(name)
        if before is not None and before.array.shape != tensor.shape:
            allowed = f"{before.array.shape} for {name!r}"
            raise ParameterError.of("grad.shape", tensor.shape, allowed)
        codec = self._codec_for(name, tensor)
        codec._check_device(values)
        if before is None:
            residual = tensors.spares.take_zeros(values.size, values)
        else:
            residual = beside(before.array, values).reshape(-1)
        left, decay = tensors.spares.take(values.size, values), np.float32(self.decay)
        late = codec.refuses_nonfinite or codec.keeps_nonfinite
        if self.nonfinite == "zero" and device_of(values) is not None:
            late = False  # it would have to wait
        if not late:
            tensor = self._finite(tensor, residual, decay)
        step = 0 if before is None else before.memory.step
        seed = derive_seed(self.seed, name=name, step=step, rank=self.rank)
        prior = None
        if before is not None and before.memory.prior is not None:
            last, symbols = before.memory.prior
            if type(last) is type(codec):  # a codec knows what its own parameters change
                prior = symbols
        try:
            symbols = codec._quantize_residual(tensor, residual, decay, seed, prior, left)
            if late and codec.keeps_nonfinite and self.nonfinite != "propagate":
                check_left(left, tensor.values, residual, decay, "grad")
            payload = codec._pack(symbols).settled(data_too=True)
            frame = Frame(payload.codec, tensor.dtype, tensor.shape, payload, name, key).to_bytes()
        except ParameterError:
            finite = self._finite(tensor, residual, decay)  # says it better, if that is the reason
            if not late or finite is tensor:
                raise
            return self._compress(tensors, name, finite, key)
        norm = _l1_norm(tensor.values) if self.track else None
        kept = None if before is None else before.memory.prior
        if codec.uses_prior:
            kept = codec, settled(symbols)
        memory = Memory(left.reshape(tensor.shape), step + 1, kept)
        tensors.replace(name, residual, _TensorState(memory, gradient_norm=norm))
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
        with self._tensors.lock(name):
            shown = self._tensors.show(name)
        if shown is None:
            raise ParameterError.of("name", name, "one that was compressed before")
        view = shown.array.view()
        if device_of(view) is None:
            view.flags.writeable = False
        return view

    def memory(self, name: str) -> Memory:
        """Return what is kept of a tensor, for `restore`; see `forget`.

        Nothing is copied: the next step writes to another array.
        """
        with self._tensors.lock(name):
            return self._tensors.lend(name)

    def restore(self, name: str, memory: Memory) -> None:
        """Return to a `memory` of the tensor: what was compressed since was not sent.

        So it is where a step is given up, as when the gradient of another worker held Inf.
        """
        with self._tensors.lock(name):
            self._tensors.restore(name, memory)

    def forget(self, name: str, memory: Memory) -> None:
        """Take back a `memory` of the tensor that no one uses any more, once.

        A later step may write to its array, which saves fresh memory.
        """
        if memory.residual is not None:
            with self._tensors.lock(name):
                self._tensors.take_back(name, memory.residual)

    def l1_norms(self, name: str) -> L1Norms:
        """Return the L1 norms of a tensor's last gradient and of what is still unsent of it.

        Where decay is below 1 the one should stay a small multiple of the other (Chen et al.,
        "Convert, compress, correct", arXiv 2203.09044, Fig. 3).

        Raises
        ------
        ParameterError
            If no gradient of that name was compressed yet by this object, with ``track=True``.
        """
        with self._tensors.lock(name):
            state = self._tensors.states.get(name)
            if state is None or state.gradient_norm is None:
                allowed = "one that was compressed before, with track=True"
                raise ParameterError.of("name", name, allowed)
            return L1Norms(state.gradient_norm, _l1_norm(state.array.reshape(-1)))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return residuals and step counts as plain arrays, copied.

        What it has of a tensor is of one step of that tensor, also while threads compress.

        Returns
        -------
        dict
            ``"residual:NAME"``: float32 array in the tensor's shape; ``"step:NAME"``: int64 scalar
            array; and where the codec goes on from its last message, ``"prior:NAME"``: uint8
            array, a frame of that.
        """
        residuals: dict[str, np.ndarray] = {}
        steps: dict[str, np.ndarray] = {}
        priors: dict[str, np.ndarray] = {}
        tensors = self._tensors
        for name in list(tensors.states):
            with tensors.lock(name):
                state = tensors.states.get(name)
                if state is None:  # taken back meanwhile
                    continue
                residuals[_RESIDUAL + name] = host(state.array).copy()
            steps[_STEP + name] = np.array(state.memory.step, np.int64)
            if state.memory.prior is not None:
                codec, symbols = state.memory.prior
                payload = codec.pack(symbols)
                frame = Frame(payload.codec, "float32", state.array.shape, payload, name)
                priors[_PRIOR + name] = np.frombuffer(frame.to_bytes(), np.uint8).copy()
        return residuals | steps | priors

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace residuals, step counts and priors by those of `state_dict`.

        Calls of `compress` that other threads have begun count as steps before.

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
                residuals[key.removeprefix(_RESIDUAL)] = _copied(array)
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
        states = {}
        for name, residual in residuals.items():
            prior = None
            if name in priors:
                frame, symbols = priors[name]
                prior = frame.codec, symbols
            states[name] = _TensorState(Memory(residual, steps[name], prior))
        self._tensors = _Tensors(states)


class Transaction:
    """Steps of a `Feedback` that are kept together, or taken back together.

    A training step compresses many tensors. Where it turns out in the end that the step does not
    count, all of them must have their residual, step count and prior of before.

    Until then there is a second array for each residual that a step has replaced.

    Parameters
    ----------
    feedback : Feedback
    """

    def __init__(self, feedback: Feedback) -> None:
        self.feedback = feedback
        self._before: dict[str, Memory] = {}

    def compress(self, name: str, grad: Any, *, key: bytes | None = None) -> bytes:
        """Compress as `Feedback.compress` does; the first call for a name notes its memory."""
        if name not in self._before:
            self._before[name] = self.feedback.memory(name)
        return self.feedback.compress(name, grad, key=key)

    def commit(self) -> None:
        """Keep all steps since the last commit or rollback."""
        before, self._before = self._before, {}
        for name, memory in before.items():
            self.feedback.forget(name, memory)

    def rollback(self) -> None:
        """Take back all steps since the last commit or rollback."""
        for name, memory in self._before.items():
            self.feedback.restore(name, memory)
        self.commit()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `Feedback.state_dict` of before the steps that may yet be taken back."""
        before = copy.copy(self.feedback)
        for name, memory in self._before.items():
            before.restore(name, memory)
        return before.state_dict()


def _copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of a float32 array, on the same device."""
    copy = empty_beside(array.size, np.float32, array).reshape(array.shape)
    copy[...] = array
    return copy


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
