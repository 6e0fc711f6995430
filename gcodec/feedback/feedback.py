"""Error feedback: add the residual of one step's gradient to the gradient of the next step."""

from __future__ import annotations

import functools
import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.large_bytes import joined
from gcodec.arrays.nonfinite import (
    NonFinite,
    check_corrected,
    check_nonfinite,
    check_top,
    with_policy,
)
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import Source, Tensor, inspect
from gcodec.codec import Codec, CodecLike, Symbols
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError, brief
from gcodec.feedback.state_dict import read_state, write_state
from gcodec.feedback.states import (
    Group,
    GroupStep,
    Memory,
    Tensors,
    TensorState,
    is_no_residual,
    no_residual,
)
from gcodec.frame import GROUP_BELOW, Frame, SharedFrame, check_key, check_many, shared_frames
from gcodec.kernels.bits import signs
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.reduce import all_finite_corrected, max_abs_bits
from gcodec.payload import Payload, Selection
from gcodec.policy import Policy
from gcodec.runtime import Array, pool
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.deferred import prefetch, resolved
from gcodec.runtime.device import beside, device_of
from gcodec.runtime.memory import clear
from gcodec.wire.kinds import check_between
from gcodec.wire.primitives import FLOATS, encode_name


def derive_seed(seed: int, *, name: str, step: int = 0, rank: int = 0) -> int:
    """Derive the seed of one tensor's message.

    Parameters
    ----------
    seed : int
        Seed of the training run, from 0 to 2**64 - 1.
    name : str
        Name of the tensor.
    step, rank : int
        Step and rank of the message, from 0 to 2**64 - 1.

    Returns
    -------
    int
        The first 8 bytes, little-endian, of BLAKE2b over seed, step and rank as u64 and the name.
    """
    numbers = struct.pack("<3Q", check_seed(seed), check_seed(step), check_seed(rank))
    digest = hashlib.blake2b(numbers + name.encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class _Step(NamedTuple):
    """What a step of a tensor, or of small tensors that share a frame, starts from.

    Attributes
    ----------
    codec : Codec
    tensor : Tensor
    residual : (n,) float32 array
    new_residual : (n,) float32 array
        Where the new residual is written. Both are a `no_residual` if the codec sends the tensor
        exactly, and nothing was left over before.
    seed : int
    prior : object, optional
        Symbols of the last step.
    name : str, optional
        Name in the frame.
    memory : Memory, optional
        Memory before the step; None for tensors that share a frame.
    patterns : Tensor, optional
        Bit patterns of a tensor on a device that is sent exactly, in place of its float32 values.
    """

    codec: Codec
    tensor: Tensor
    residual: Array
    new_residual: Array
    seed: int
    prior: Symbols | None = None
    name: str | None = None
    memory: Memory | None = None
    patterns: Tensor | None = None

    @property
    def title(self) -> str:
        """Name of the gradient for errors."""
        return "grad" if self.name is None else _title(self.name)

    @property
    def is_exact(self) -> bool:
        """Whether the tensor is sent as it is, without any residual."""
        return is_no_residual(self.new_residual)

    @property
    def sent(self) -> Array:
        """What the codec gets if the tensor is sent as it is."""
        return (self.patterns or self.tensor).values

    def frame(self, payload: Payload, key: bytes | None) -> bytes:
        """Return the frame with a payload that is on the host."""
        tensor = self.tensor
        frame = Frame(payload.codec, tensor.dtype, tensor.shape, payload, self.name, key)
        return frame.to_bytes()


_Result = tuple[bytes, _Step, Symbols]
"""Frame of a tensor, and its step. The state still has the old residual of the tensor."""


class L1Norms(NamedTuple):
    """Sums of magnitudes of one tensor, in float64 and in the fixed order of summation.

    Attributes
    ----------
    gradient : float
        Norm of the last step's gradient.
    residual : float
        Norm of the residual after that step.
    """

    gradient: float
    residual: float


class Feedback:
    """Error feedback: a codec with a residual for each tensor name.

    `compress` encodes C(g + decay·e) for the gradient g and the residual e, and keeps the error
    e ← g + decay·e − decoded. With decay 1, the sum of all decoded messages plus the residual
    equals the sum of all gradients. Source: Seide et al. 2014; Karimireddy et al. 2019.

    The object is thread-safe. Calls for different names run in parallel; calls for the same name
    run one after another in some order. A signal handler that interrupts a step may call
    `state_dict`, `residual` and `l1_norms`, which return the state before that step; calls that
    change the same tensor raise `ParameterError` there. A pickle or a copy starts with the same
    state and is independent from then on.

    The residuals take one float32 array for each tensor, and one more for each distinct size.
    `compress_many` and a `Transaction` take a second array for each of their tensors, because they
    undo all steps if one fails. These arrays are kept for the next call. A tensor has no array
    while its codec has no error, as with ``lossless``: the codec then encodes the gradient itself.

    Parameters
    ----------
    codec : str, mapping, Codec or Policy
        Codec, or policy that picks a codec for each tensor; see `gcodec.parse`.
    decay : float
        Factor of the residual, from 0 (no memory) to 1.
    seed : int
        Seed of the training run, from 0 to 2**64 - 1; see `derive_seed` for each message's seed.
    rank : int
        Rank of this worker.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf: raise `ParameterError` and change nothing, replace them by 0, or
        pass them to the codec. Under ``"raise"``, ``lossless`` accepts them as in `gcodec.encode`,
        unless it also has to send the residual of another codec.
    track : bool
        Whether to record the norms that `l1_norms` returns, which takes a pass over each gradient.

    Raises
    ------
    ParameterError
        If an argument is invalid.

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
        codec: CodecLike | Policy,
        *,
        decay: float = 1.0,
        seed: int = 0,
        rank: int = 0,
        nonfinite: NonFinite = "raise",
        track: bool = False,
    ) -> None:
        self.codec: Codec | Policy = codec if isinstance(codec, Policy) else parse_encoder(codec)
        self.decay = check_between("decay", decay, 0, 1, "a number from 0 to 1")
        check_nonfinite(nonfinite)
        self.seed = check_seed(seed)
        self.rank = check_seed(rank, "rank")
        self.nonfinite: NonFinite = nonfinite
        self.track = track
        self._tensors = Tensors()

    def __repr__(self) -> str:
        """Return the codec and the size of the state, and the norm that `track` records."""
        states = list(self._tensors.states.values())
        codec = str(self.codec)
        if isinstance(self.codec, Policy):
            codec = f"a policy of {len(self.codec.rules)} rules"
        count = f"{len(states):,} tensor{'' if len(states) == 1 else 's'}"
        nbytes = sum(state.array.nbytes for state in states if not is_no_residual(state.array))
        facts = [codec, count, f"{nbytes:,} bytes of residuals"]
        norms = [state.gradient_norm for state in states if state.gradient_norm is not None]
        if norms:
            facts.append(f"L1 norm {sum(norms):.3g} of the last gradients")
        return f"<Feedback: {', '.join(facts)}>"

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes, and the state of each tensor, for a pickle or a copy."""
        states = dict[str, TensorState]()
        for name in list(self._tensors.states):
            if (state := self._tensors.show(name)) is not None:
                # A memory is known by its array, so the copy gets views, which are other arrays.
                memory = state.memory._replace(residual=state.array.view())
                states[name] = state._replace(memory=memory, group=None)
        return {**self.__dict__, "_tensors": states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _tensors=Tensors(state["_tensors"]))

    @exact
    def compress(self, name: str, grad: TensorLike, *, key: bytes | None = None) -> bytes:
        """Compress one step's gradient of one tensor.

        Parameters
        ----------
        name : str
            Name of the tensor, stored in the frame. The residual and the step count belong to it.
        grad : array
            Gradient, of the same shape at every step; see `gcodec.encode`.
        key : bytes, optional
            Secret of 1 to 64 bytes for the frame's tag; see `gcodec.encode`. The object does not
            keep it.

        Returns
        -------
        bytes
            A frame.

        Raises
        ------
        ParameterError, TypeError
            If an argument is invalid. Any exception, even an interrupt, leaves the residual and
            the step count unchanged.
        """
        return self._compress(name, grad, key)[0]

    def _compress(
        self, name: str, grad: TensorLike, key: bytes | None, *, keeps_symbols: bool = False
    ) -> tuple[bytes, Symbols]:
        """Return the frame of a tensor, and if they are to be kept, the symbols in it."""
        encode_name(name)  # refuse an invalid name before anything changes
        check_key(key)
        source = inspect(grad, "grad")
        with source.context():
            tensors = self._tensors  # `load_state_dict` may replace the attribute meanwhile
            with tensors.free_lock(name):
                frame, step, symbols = self._run(self._start(tensors, name, source), key)
                if keeps_symbols and step.is_exact:
                    symbols = step.codec._quantize(step.sent, step.seed, None)
                tensors.replace(name, step.residual, self._state_after(step, symbols))
                return frame, symbols

    @exact
    def compress_many(
        self,
        grads: Mapping[str, TensorLike],
        *,
        group_below: int = GROUP_BELOW,
        key: bytes | None = None,
    ) -> bytes:
        """Compress one step's gradients of many tensors as one message.

        Small tensors with the same codec and dtype share a frame with one scale and one set of
        tables, as if they were one vector. Larger tensors have their own frames, as from
        `compress`. Several threads compress them.

        Parameters
        ----------
        grads : mapping
            Gradients by name; see `compress`. A step compresses each name once.
        group_below : int
            Tensors with at least this number of elements have their own frames; with 0, all have.
            Only arrays on the host share frames. With `track`, none do, because it needs the
            norm of each tensor.
        key : bytes, optional
            See `compress`.

        Returns
        -------
        bytes
            A message that `gcodec.decode_many` reads. Specification: docs/wire-format.md,
            "Messages of many tensors".

        Raises
        ------
        ParameterError, TypeError
            If an argument is invalid. Any exception leaves all residuals and step counts
            unchanged.

        Examples
        --------
        >>> import gcodec, numpy as np
        >>> feedback = gcodec.Feedback("sign")
        >>> message = feedback.compress_many({"a": np.ones(2), "b": np.array([3.0, -3.0])})
        >>> {name: x.tolist() for name, x in gcodec.decode_many(message).items()}
        {'a': [2.0, 2.0], 'b': [2.0, -2.0]}
        """
        group_below = check_many("grads", grads, group_below)
        check_key(key)
        sources = {name: inspect(grad, f"grads[{name!r}]") for name, grad in grads.items()}
        grouped = self._grouped(sources, group_below)
        for name in itertools.chain.from_iterable(group.arrays for group in grouped):
            del sources[name]
        tensors = self._tensors

        def run() -> bytes:
            results = self._run_each(tensors, sources, key)
            groups = [self._run_group(tensors, group, key) for group in grouped]
            frames = [frame for group in groups for frame in group.frames]
            frames += (frame for frame, _, _ in results.values())
            message = joined(frames)  # may need more memory than there is
            self._finish_many(tensors, results.values(), groups)
            return message

        return tensors.while_locked(grads, run)

    def _run_each(
        self, tensors: Tensors, sources: Mapping[str, Source], key: bytes | None
    ) -> dict[str, _Result]:
        """Run a step of each tensor, on several threads or on devices, without finishing it."""
        results: dict[str, _Result] = {}

        def run_one(name: str) -> _Result:
            with sources[name].context():
                return self._run(self._start(tensors, name, sources[name]), key)

        for device in {source.device for source in sources.values()} - {None}:
            resident = {name: each for name, each in sources.items() if each.device is device}
            try:
                results |= self._run_resident(tensors, resident, key)
            except ParameterError:  # the first tensor that is refused raises an error of its own
                results |= {name: run_one(name) for name in resident}
        others = [name for name in sources if name not in results]
        ran = pool.run_each(lambda number, _: run_one(others[number]), len(others))
        results |= zip(others, ran, strict=True)
        return {name: results[name] for name in sources}

    def _run_resident(
        self, tensors: Tensors, sources: Mapping[str, Source], key: bytes | None
    ) -> dict[str, _Result]:
        """Run a step of each tensor of one device; the host waits once for all frames."""
        payloads = dict[str, Payload]()
        steps: dict[str, tuple[_Step, Symbols]] = {}
        with next(iter(sources.values())).context():
            for name, source in sources.items():
                with source.stream():
                    step = self._start(tensors, name, source)
                    step, symbols, packed = self._attempt(step)
                    for number in symbols if step.codec.uses_prior else ():
                        prefetch(number)
                    packed.when_resolved(functools.partial(payloads.__setitem__, name))
                steps[name] = step, symbols
        return {
            name: (step.frame(payloads[name], key), step, symbols)
            for name, (step, symbols) in steps.items()
        }

    def _grouped(self, sources: Mapping[str, Source], group_below: int) -> list[SharedFrame]:
        """Return the groups of small tensors that share frames; see `compress_many`."""
        if self.track:
            return []
        return shared_frames(sources, self._codec_of, group_below, FLOATS)

    def _run_group(self, tensors: Tensors, group: SharedFrame, key: bytes | None) -> GroupStep:
        """Run a step of a group whose locks are held, without changing its state."""
        names, arrays = tuple(group.arrays), list(group.arrays.values())
        tensor = inspect(group.vector(), "grads").read(segments=True)
        residual = tensors.residual_of(names, arrays)
        states = [tensors.states.get(name) for name in names]
        counts = [0 if state is None else state.memory.step for state in states]
        seed = self._seed_of(group.joined_names, max(counts))
        step = self._step(tensors, group.codec, tensor, residual, seed)
        try:
            frame, _, _ = self._run(step, key)
        except ParameterError:
            if self.nonfinite != "propagate" or step.codec.refuses_nonfinite:
                self._check_members(group.arrays, residual)  # raises a better message
            raise
        parts = group.parts(step.new_residual)
        frames = [group.members(key), frame]
        return GroupStep(names, Group(step.new_residual, parts), counts, frames)

    def _check_members(self, grads: Mapping[str, np.ndarray], residual: np.ndarray) -> None:
        """Raise the error of the first gradient of a group whose sum is not finite."""
        end = 0
        for name, grad in grads.items():
            start, end = end, end + grad.size
            values = inspect(grad, _title(name)).read().values
            if self.nonfinite == "zero":
                values = convert.finite_or_zero(values)
            own = np.ascontiguousarray(residual[start:end])
            check_corrected(values, own, np.float32(self.decay), _title(name))

    def _start(self, tensors: Tensors, name: str, source: Source) -> _Step:
        """Read a tensor whose lock is held, and return its step."""
        tensor, before = source.read(segments=True), tensors.states.get(name)
        if before is not None and before.array.shape != tensor.shape:
            allowed = f"{before.array.shape} for {name!r}"
            raise ParameterError.of("grad.shape", tensor.shape, allowed)
        codec = self._codec_of(name, tensor.shape, tensor.dtype)
        memory = Memory(no_residual(tensor.shape), 0, None) if before is None else before.memory
        step = self._step(
            tensors, codec, tensor, memory.residual, self._seed_of(name, memory.step)
        )
        patterns = prior = None
        if step.is_exact and codec.keeps_every_bit and source.device is not None:
            patterns = source.read(patterns=True)
        # A codec handles the symbols of other parameters, but not of other codecs.
        if memory.prior is not None and type(memory.prior[0]) is type(codec):
            prior = memory.prior[1]
        return step._replace(prior=prior, name=name, memory=memory, patterns=patterns)

    def _step(
        self, tensors: Tensors, codec: Codec, tensor: Tensor, residual: Array, seed: int
    ) -> _Step:
        """Return what a step starts from, given values that are read by segments."""
        codec = self._bound(codec, tensor)
        residual, new_residual = _residuals(tensors, codec, tensor, residual)
        # Without a residual, codecs read what `gcodec.encode` passes to them; with one, they
        # quantize the sum of float32 values in one pass.
        is_exact = is_no_residual(residual)
        takes_segments = codec.reads_segments if is_exact else tensor.dtype != "float64"
        if not takes_segments:
            tensor = tensor._replace(values=convert.whole(tensor.values))
        return _Step(codec, tensor, residual, new_residual, seed)

    def _codec_of(self, name: str, shape: tuple[int, ...], dtype: str) -> Codec:
        """Return the codec of a tensor."""
        codec = self.codec
        return codec.codec(name, shape, dtype) if isinstance(codec, Policy) else codec

    def _seed_of(self, name: str, step: int) -> int:
        """Return the seed of a message."""
        return derive_seed(self.seed, name=name, step=step, rank=self.rank)

    def _bound(self, codec: Codec, tensor: Tensor) -> Codec:
        """Return the codec bound to a tensor, which refuses NaN and Inf itself if it can."""
        if self.nonfinite != "propagate":
            codec = codec._refusing()
        return codec._bound_to(tensor)

    def _finish_many(
        self, tensors: Tensors, results: Iterable[_Result], groups: Sequence[GroupStep] = ()
    ) -> None:
        """Replace the states of tensors and groups whose locks are held."""
        steps = {
            str(step.name): (step.residual, self._state_after(step, symbols))
            for _, step, symbols in results
        }
        tensors.replace_many(steps, groups)

    def _state_after(self, step: _Step, symbols: Symbols) -> TensorState:
        """Return the state of a tensor after a step."""
        assert step.memory is not None
        norm = _l1_norm(step.tensor.values) if self.track else None
        uses_prior = step.codec.uses_prior
        last = (step.codec, resolved(symbols)) if uses_prior else step.memory.prior
        memory = Memory(step.new_residual.reshape(step.tensor.shape), step.memory.step + 1, last)
        return TensorState(memory, gradient_norm=norm)

    def _run(self, step: _Step, key: bytes | None) -> _Result:
        """Return the frame of a step, and the step with the tensor that the frame contains.

        Most codecs find NaN and Inf while they quantize, so the first attempt takes no pass over
        memory for them. If it fails under ``nonfinite="zero"``, a second one encodes zeros there.
        """
        try:
            step, symbols, packed = self._attempt(step)
            return step.frame(packed.resolved(with_data=True), key), step, symbols
        except ParameterError:
            finite = self._finite(step)  # may raise an error that names the gradient
            has_replaced = finite.tensor is not step.tensor
            if not has_replaced or not self._checks_later(step):
                raise
            return self._run(finite, key)

    def _attempt(self, step: _Step) -> tuple[_Step, Symbols, Payload | Selection[Payload]]:
        """Write the new residual, and return what the frame will contain."""
        codec = step.codec
        if not self._checks_later(step):
            step = self._finite(step)
        tensor = step.tensor
        if step.is_exact:
            return step, None, codec._encode(step.sent, step.seed, None)
        update = ResidualUpdate(step.residual, np.float32(self.decay), step.new_residual)
        symbols = codec._quantize_residual(tensor, update, step.seed, step.prior)
        return step, symbols, codec._pack_checked(symbols)

    def _checks_later(self, step: _Step) -> bool:
        """Return whether NaN and Inf are found while quantizing."""
        if self.nonfinite == "zero" and device_of(step.tensor.values) is not None:
            return False  # a second attempt would wait for the device
        return step.codec.refuses_nonfinite

    def _finite(self, step: _Step) -> _Step:
        """Apply `nonfinite`, and refuse a gradient that would make the residual infinite."""
        tensor, residual, decay = step.tensor, step.residual, np.float32(self.decay)
        if self.nonfinite == "propagate" and not step.codec.refuses_nonfinite:
            return step
        if step.is_exact:
            if self.nonfinite == "zero":
                patterns = step.patterns and with_policy(step.patterns, "zero")
                return step._replace(tensor=with_policy(tensor, "zero"), patterns=patterns)
            if not step.codec.keeps_every_bit:
                check_top(max_abs_bits(tensor.values), tensor.values, step.title)
            return step
        if self.nonfinite == "zero":
            on_host = device_of(residual) is None
            if on_host and all_finite_corrected(tensor.values, residual, decay):
                return step
            step = step._replace(tensor=with_policy(tensor, "zero"))
        check_corrected(step.tensor.values, residual, decay, step.title)
        return step

    def residual(self, name: str) -> Array:
        """Return the residual of a tensor: the sum of its gradients that is not yet sent.

        Returns
        -------
        float32 array
            In the shape of the tensor. Later steps do not change it. It is read-only on the host;
            do not write to it on a device either. It is on the host if nothing is left over,
            because the codec has no error.

        Raises
        ------
        ParameterError
            If no gradient of that name has been compressed.
        """
        shown = self._tensors.show(name)
        if shown is None:
            raise ParameterError.of("name", name, "one that was compressed before")
        view = shown.array.view()
        if device_of(view) is None:
            view.flags.writeable = False
        return view

    def memory(self, name: str) -> Memory:
        """Return the state of a tensor, for `restore`; call `forget` when it is not needed.

        Nothing is copied: the next step writes to another array.
        """
        return self._tensors.lend(name)

    def restore(self, name: str, memory: Memory) -> None:
        """Restore a `memory` of the tensor, to undo steps whose messages were not used.

        For instance, all workers undo a step in which one worker's gradient contained Inf. The
        memory of another object is copied.

        Raises
        ------
        ParameterError
            If `forget` has released the memory and a step has followed it; nothing changes then.
        """
        self._tensors.restore(name, memory)

    def forget(self, name: str, memory: Memory) -> None:
        """Release a `memory` of the tensor; call this once for each.

        A later step may then reuse its array.
        """
        if memory.residual is not None:
            self._tensors.take_back(name, memory.residual)

    @exact
    def l1_norms(self, name: str) -> L1Norms:
        """Return the L1 norms of a tensor's last gradient and of its residual.

        With a decay below 1, the residual's norm should stay a small multiple of the gradient's
        (Chen et al., "Convert, compress, correct", arXiv 2203.09044, Fig. 3).

        Raises
        ------
        ParameterError
            If this object has not compressed a gradient of that name with ``track=True``.
        """
        with self._tensors.lock(name):
            state = self._tensors.states.get(name)
            if state is None or state.gradient_norm is None:
                allowed = "one that was compressed before, with track=True"
                raise ParameterError.of("name", name, allowed)
            is_nothing = is_no_residual(state.array)
            left = 0.0 if is_nothing else _l1_norm(state.array.reshape(-1))
            return L1Norms(state.gradient_norm, left)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the residuals, step counts and priors as NumPy arrays.

        The entries of one tensor belong to the same step, even while threads compress.

        Returns
        -------
        dict
            ``"residual:NAME"``: float32 array in the tensor's shape. ``"step:NAME"``: int64 scalar
            array. ``"prior:NAME"``, if the codec uses its last message: uint8 array, a frame of
            that message.
        """
        return write_state(self._tensors)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Replace all residuals, step counts and priors by those of a `state_dict`.

        Calls of `compress` that other threads have begun still update the former state.

        Raises
        ------
        ParameterError
            If `state` is no such dict; nothing changes then.
        """
        self._tensors = read_state(state)


def _residuals(
    tensors: Tensors, codec: Codec, tensor: Tensor, residual: Array
) -> tuple[Array, Array]:
    """Return the residual that a step reads, and the array that gets the new one; see `_Step`."""
    values = tensor.values
    is_nothing = is_no_residual(residual)
    if not is_nothing:
        residual = beside(residual, values).reshape(-1)
    is_exact = codec.contraction(values.size) == 1 and not codec.uses_prior
    if is_exact and (is_nothing or not max_abs_bits(residual)):
        nothing = no_residual((values.size,))
        return nothing, nothing
    if is_nothing:
        residual = tensors.spares.take(values.size, values)
        clear(residual)
    return residual, tensors.spares.take(values.size, values)


def _title(name: str) -> str:
    """Name a gradient for errors."""
    return f"grad of {brief(repr(name))}"


def _l1_norm(values: Array) -> float:
    _, total = signs.quantize(values, squares=False)
    return float(total)
