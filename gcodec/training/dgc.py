"""Deep gradient compression: top-k with momentum applied before the selection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gcodec.api import encode
from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.protocols import TensorLike
from gcodec.codecs.topk import TopK
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.frame import Frame
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.reduce import moments
from gcodec.runtime.arithmetic import exact
from gcodec.training import state
from gcodec.training.collectives import all_gather_mean, check_means, on_all_ranks
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import (
    check_between,
    check_float32,
    check_integer,
    check_mapping,
    check_positive,
)

_MAX_COUNT = 2**62
_ANY_SIZE = "; without 'velocity:' and 'residual:' entries, DGC starts anew with any ranks"


class _Step(NamedTuple):
    """Frame of one tensor, and its accumulators after the step.

    Attributes
    ----------
    message : bytes
    velocity, residual : float32 array
    """

    message: bytes
    velocity: np.ndarray
    residual: np.ndarray


class DGC:
    """Gradient accumulators of one worker, and the mean of the elements that all workers send.

    Each tensor has two accumulators u and v that start at 0. For a clipped gradient g, one step
    computes u ← momentum·u + g and v ← v + u, sends the k elements of v with the largest
    magnitude, and sets these elements to 0 in both u and v. An element therefore receives as much
    momentum as if it had been sent at once, and no stale momentum remains after it is sent.
    Apply the mean without further momentum: ``x -= rate * mean``.

    Source: Lin et al., "Deep gradient compression", ICLR 2018.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    density : float
        Fraction of the elements to send, above 0 and at most 1. At least one element is sent.
    momentum : float
        Momentum factor, at least 0 and below 1.
    clip : float
        Bound on the norm of the mean gradient over all tensors. Each of P workers scales its own
        gradient down to norm clip/√P. Infinity disables clipping.
    warmup : int
        Number W of epochs in which the density d falls to its final value; epoch e uses
        d^((e + 1)/(W + 1)).
    value : str
        Format of the sent values; see `topk`. The rounding error stays in v.
    min_size : int
        Tensors with fewer elements are sent dense: the message is momentum·u + g, and v stays 0.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from gcodec.training import DGC, Simulator
    >>> def worker(communicator, gradient):
    ...     method = DGC(communicator, density=0.5, momentum=0.5, warmup=0)
    ...     return [method.average({"w": gradient}, epoch=0)["w"].tolist() for step in range(2)]
    >>> gradients = [np.array([3, 1], np.float32), np.array([1, 2], np.float32)]
    >>> Simulator(2).run(worker, gradients)[0]  # in step 2, 3 and 1 + (0.5·1 + 1)
    [[1.5, 1.0], [2.75, 0.0]]
    """

    @exact
    def __init__(
        self,
        communicator: Communicator,
        *,
        density: float = 0.001,
        momentum: float = 0.9,
        clip: float = math.inf,
        warmup: int = 4,
        value: str = "float32",
        min_size: int = 0,
    ) -> None:
        self.communicator = communicator
        self.density = float(position_coding.SHARE.check("density", density))
        allowed = "a number from 0 to below 1"
        self.momentum = check_between("momentum", momentum, 0, math.nextafter(1, 0), allowed)
        self.clip = check_positive("clip", clip)
        self.warmup = check_integer("warmup", warmup, 0, _MAX_COUNT, "a number of epochs")
        self.min_size = check_integer("min_size", min_size, 0, _MAX_COUNT, "a number of elements")
        self._codec = TopK().replaced(value=value)
        self._velocity: dict[str, np.ndarray] = {}  # u
        self._residual: dict[str, np.ndarray] = {}  # v
        self._digest = b""  # of a loaded state, until a step has compared it

    def density_at(self, epoch: int) -> float:
        """Return the fraction of the elements that is sent in an epoch, counted from 0."""
        epoch = check_integer("epoch", epoch, 0, _MAX_COUNT, "a number of epochs")
        return math.pow(self.density, (min(epoch, self.warmup) + 1) / (self.warmup + 1))

    @exact
    def average(
        self,
        gradients: Mapping[str, TensorLike],
        epoch: int,
        *,
        parameters: Mapping[str, np.ndarray] | None = None,
        rate: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Take one step on all workers, and average the elements that they send.

        All workers must call this method together.

        Parameters
        ----------
        gradients : mapping of str to array
            Gradients of this worker; see `gcodec.encode`. Names, shapes and order are the same on
            every rank.
        epoch : int
            Current epoch, counted from 0.
        parameters : mapping of str to array, optional
            Parameters to compare with those of the other ranks, which must pass theirs in the same
            step. If they differ, the replicas would never become equal.
        rate : float, optional
            Learning rate of the caller, finite as float32, to compare together with
            `parameters`.

        Returns
        -------
        dict of str to float32 array
            Mean of each tensor, in its shape.

        Raises
        ------
        ParameterError, TypeError
            If a gradient of any rank contains NaN or Inf, or if an accumulator of any rank or a
            mean exceeds float32, or if the parameters or rates of the ranks differ, or only some
            of them have loaded a state; then all ranks raise. No state has changed.
        """
        density = self.density_at(epoch)
        arrays = state.as_float32(gradients, self._velocity)
        rate = None if rate is None else check_float32("rate", rate)
        shared = b""
        if parameters is not None:
            check_mapping("parameters", parameters)
            shared = state.shared(parameters, rate=rate)
        steps = on_all_ranks(
            self.communicator,
            arrays,
            lambda: self._steps(arrays, density),
            self._digest,
            shared,
        )
        frames = [step.message for step in steps.values()]
        means = all_gather_mean(self.communicator, frames)
        check_means(means)
        self._keep(steps)
        self._digest = b""
        return dict(zip(gradients, means, strict=True))

    @exact
    def compress(self, gradients: Mapping[str, TensorLike], epoch: int) -> list[bytes]:
        """Take one step on this worker alone; return the frame of each tensor. See `average`.

        If the step raises, no state has changed.
        """
        density = self.density_at(epoch)
        steps = self._steps(state.as_float32(gradients, self._velocity), density)
        self._keep(steps)
        return [step.message for step in steps.values()]

    def _steps(self, arrays: Mapping[str, np.ndarray], density: float) -> dict[str, _Step]:
        factor = self._clip_factor(arrays)
        return {name: self._step(name, x, density, factor) for name, x in arrays.items()}

    def _keep(self, steps: Mapping[str, _Step]) -> None:
        self._velocity |= {name: step.velocity for name, step in steps.items()}
        self._residual |= {name: step.residual for name, step in steps.items()}

    def _clip_factor(self, arrays: Mapping[str, np.ndarray]) -> np.float32:
        """Return the factor that scales the gradients down to the bound on their norm."""
        squares = 0.0
        for name, array in arrays.items():
            array_squares = float(moments(array.reshape(-1)).squares)
            if not math.isfinite(array_squares):
                raise nonfinite_error(array.reshape(-1), name)
            squares += array_squares
        bound = self.clip / math.sqrt(self.communicator.size)
        return np.float32(min(1.0, bound / math.sqrt(squares)) if squares else 1)

    def _step(self, name: str, x: np.ndarray, density: float, factor: np.float32) -> _Step:
        clipped = x.reshape(-1) if factor == 1 else x.reshape(-1) * factor
        zeros = np.zeros(x.shape, np.float32)
        previous = self._velocity.get(name, zeros).reshape(-1)
        velocity = arithmetic.corrected(clipped, previous, np.float32(self.momentum))
        state.check_finite("accumulators", {name: velocity})
        residual = self._residual.get(name, zeros).reshape(-1)
        if x.size < self.min_size:
            sent = velocity
            if residual.any():  # from a time when the tensor was not small
                with np.errstate(over="ignore", invalid="ignore"):
                    sent = velocity + residual
                state.check_finite("accumulators", {name: sent})
                residual = np.zeros_like(sent)
            message: bytes = encode(sent.reshape(x.shape), "raw", name=name)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                residual = residual + velocity
            state.check_finite("accumulators", {name: residual})
            codec = self._codec.replaced(k=position_coding.sent(x.size, "ratio", density))
            symbols = codec.quantize(residual)
            positions, values = symbols.positions, symbols.values
            residual[positions] -= value_coding.dequantize(values, codec.value, positions.size)
            state.check_finite("accumulators", {name: residual})  # a value may be rounded to Inf
            velocity[positions] = 0
            payload = codec.pack(symbols)
            message = Frame(payload.codec, "float32", x.shape, payload, name).to_bytes()
        return _Step(message, velocity.reshape(x.shape), residual.reshape(x.shape))

    def velocity(self, name: str) -> np.ndarray:
        """Return the momentum accumulator u of a tensor: a read-only float32 view in its shape."""
        return state.view(self._velocity, name)

    def residual(self, name: str) -> np.ndarray:
        """Return the unsent sum v of a tensor: a read-only float32 view in its shape."""
        return state.view(self._residual, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all accumulators, which differ between ranks.

        Returns
        -------
        dict
            ``"velocity:NAME"`` and ``"residual:NAME"``; and ``"place:rank"`` and ``"place:size"``,
            the rank and the number of ranks.
        """
        place = state.place_of(self.communicator)
        return state.pack(velocity=self._velocity, residual=self._residual, place=place)

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Replace all state by a dict that `state_dict` returned.

        Raises
        ------
        ParameterError
            If `saved` is not such a dict, or has accumulators of another rank or number of ranks.
            No state has changed.
        """
        velocity, residual, place = state.unpack(saved, "velocity", "residual", "place")
        if velocity:
            state.check_place(place, self.communicator, _ANY_SIZE)
        state.check_matching(velocity, residual)
        self._velocity, self._residual = velocity, residual
        self._digest = state.digest()
