"""Deep gradient compression: top-k with momentum where it belongs, before what is kept back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.api import encode
from gcodec.arrays.intake import nonfinite_error
from gcodec.codecs.topk import TopK
from gcodec.entropy import positions as position_coding
from gcodec.entropy import values as value_coding
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.kernels.numeric import arithmetic
from gcodec.kernels.numeric.reduce import all_finite, moments
from gcodec.training import state
from gcodec.training.collectives import all_gather_mean, check_means, prepared
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_integer, check_number

_MOST = 2**62


class _Step(NamedTuple):
    """What a step makes of one tensor.

    Attributes
    ----------
    message : bytes
        Its frame.
    velocity, residual : float32 array
        The accumulators after it.
    """

    message: bytes
    velocity: np.ndarray
    residual: np.ndarray


class DGC:
    """The local accumulators of one worker, and the mean of what all of them send.

    Of a gradient g, clipped, and the accumulators u and v of its tensor, all of which begin with
    0, one step makes u ← momentum·u + g and v ← v + u, sends the k elements of largest magnitude
    of v, and sets what was sent to 0 in both. So momentum reaches an element as often as it would
    if it had been sent at once, and none that is stale carries on behind what was sent. The means
    are applied as they are, ``x -= rate * mean``: the momentum is in them.

    Source: Lin et al., "Deep gradient compression", ICLR 2018.

    Parameters
    ----------
    communicator : Communicator
    density : float
        Share of the elements that is sent, above 0, up to 1; one is at least.
    momentum : float
        From 0 up to 1, 1 left out.
    clip : float
        Largest norm of a mean gradient, all tensors together. Each worker scales its own down to
        clip/√P, P being the workers; inf: no clipping.
    warmup : int
        Epochs W in which the density falls to its value: d^((e + 1)/(W + 1)) in epoch e.
    value : str
        What values are sent as; see `topk`. What rounding leaves stays in v.
    min_size : int
        Tensors of fewer elements are sent whole: momentum·u + g, and nothing is kept back.

    Raises
    ------
    ParameterError

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
        allowed = "a number from 0 up to 1, 1 left out"
        self.momentum = check_between("momentum", momentum, 0, math.nextafter(1, 0), allowed)
        self.clip = check_number("clip", clip, "a number above 0")
        if not self.clip > 0:
            raise ParameterError.of("clip", clip, "a number above 0")
        self.warmup = check_integer("warmup", warmup, 0, _MOST, "a number of epochs")
        self.min_size = check_integer("min_size", min_size, 0, _MOST, "a number of elements")
        self._codec = TopK().replaced(value=value)
        self._velocity: dict[str, np.ndarray] = {}  # u
        self._residual: dict[str, np.ndarray] = {}  # v

    def density_at(self, epoch: int) -> float:
        """Return the share of the elements that is sent in an epoch, from 0 on."""
        epoch = check_integer("epoch", epoch, 0, _MOST, "a number of epochs")
        return math.pow(self.density, (min(epoch, self.warmup) + 1) / (self.warmup + 1))

    def average(self, gradients: Mapping[str, Any], epoch: int) -> dict[str, np.ndarray]:
        """Average what all workers send of one step's gradients; all call this at once.

        Parameters
        ----------
        gradients : mapping of str to array
            See `gcodec.encode`; with the same names, shapes and order on every rank.
        epoch : int
            From 0 on.

        Returns
        -------
        dict of str to float32 array
            The means, in the shapes of the gradients.

        Raises
        ------
        ParameterError, TypeError
            Nothing has then changed. All ranks raise if one has NaN or Inf, if accumulators of
            one pass float32, or if a mean does.
        """
        density = self.density_at(epoch)
        arrays = state.taken(gradients, self._velocity)
        steps = prepared(self.communicator, arrays, lambda: self._steps(arrays, density))
        frames = [step.message for step in steps.values()]
        means = all_gather_mean(self.communicator, frames)
        check_means(means)
        self._keep(steps)
        return dict(zip(gradients, means, strict=True))

    def compress(self, gradients: Mapping[str, Any], epoch: int) -> list[bytes]:
        """Take one step on this worker; return the frame of each tensor. See `average`.

        Where it raises, nothing has changed.
        """
        density = self.density_at(epoch)
        steps = self._steps(state.taken(gradients, self._velocity), density)
        self._keep(steps)
        return [step.message for step in steps.values()]

    def _steps(self, arrays: Mapping[str, np.ndarray], density: float) -> dict[str, _Step]:
        """Return the step of each tensor."""
        factor = self._factor(arrays)
        return {name: self._step(name, x, density, factor) for name, x in arrays.items()}

    def _keep(self, steps: Mapping[str, _Step]) -> None:
        self._velocity |= {name: step.velocity for name, step in steps.items()}
        self._residual |= {name: step.residual for name, step in steps.items()}

    def _factor(self, arrays: Mapping[str, np.ndarray]) -> np.float32:
        """Return what to multiply gradients by, so that their norm keeps its bound."""
        squares = 0.0
        for array in arrays.values():
            part = float(moments(array.reshape(-1)).squares)
            if not math.isfinite(part):
                raise nonfinite_error(array.reshape(-1))
            squares += part
        bound = self.clip / math.sqrt(self.communicator.size)
        return np.float32(min(1.0, bound / math.sqrt(squares)) if squares else 1)

    def _step(self, name: str, x: np.ndarray, density: float, factor: np.float32) -> _Step:
        own = x.reshape(-1) if factor == 1 else x.reshape(-1) * factor
        nothing = np.zeros(x.shape, np.float32)
        before = self._velocity.get(name, nothing).reshape(-1)
        velocity = arithmetic.corrected(own, before, np.float32(self.momentum))
        residual = self._residual.get(name, nothing).reshape(-1)
        if x.size < self.min_size:
            message: bytes = encode(velocity.reshape(x.shape), "raw", name=name)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                residual = residual + velocity
            self._check_accumulators(name, residual)
            codec = self._codec.replaced(k=position_coding.sent(x.size, "ratio", density))
            symbols = codec.quantize(residual)
            positions, values = symbols.positions, symbols.values
            residual[positions] -= value_coding.dequantize(values, codec.value, positions.size)
            velocity[positions] = 0
            payload = codec.pack(symbols)
            message = Frame(payload.codec, "float32", x.shape, payload, name).to_bytes()
        self._check_accumulators(name, velocity, residual)
        return _Step(message, velocity.reshape(x.shape), residual.reshape(x.shape))

    def _check_accumulators(self, name: str, *arrays: np.ndarray) -> None:
        if not all(map(all_finite, arrays)):
            raise ParameterError(f"gradients: the accumulators of {name!r} must not pass float32")

    def velocity(self, name: str) -> np.ndarray:
        """Return u of a tensor, a read-only float32 view in its shape."""
        return state.shown(self._velocity, name)

    def residual(self, name: str) -> np.ndarray:
        """Return v of a tensor, what is still unsent: a read-only float32 view in its shape."""
        return state.shown(self._residual, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return ``"velocity:NAME"`` and ``"residual:NAME"``: float32 arrays, copied."""
        return state.written(velocity=self._velocity, residual=self._residual)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replace all state by that of `state_dict`.

        Raises
        ------
        ParameterError
            If it is not such a dict; nothing is then replaced.
        """
        velocity, residual = state.read(saved, "velocity", "residual")
        state.check_alike(velocity, residual)
        self._velocity, self._residual = velocity, residual
