"""1-bit Adam: Adam until its variances have settled, then one bit of each momentum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcodec.codecs.sign import Sign
from gcodec.errors import ParameterError
from gcodec.feedback import Feedback
from gcodec.training import state
from gcodec.training.collectives import check_finite, check_means, dense_mean, two_phase_mean
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_integer, check_number

_MOST = 2**62
_KINDS = ("step", "momentum", "variance", "worker", "server")


class OneBitAdam:
    """An optimiser of which the workers exchange one bit for each element, and back one.

    In the first `warmup` steps the gradients are averaged as they are, and this is Adam: of the
    mean g, ``m = b1·m + (1 − b1)·g`` and ``v = b2·v + (1 − b2)·g²``; then
    ``x -= rate · (m/(1 − b1^t)) / (√(v/(1 − b2^t)) + epsilon)``. After that v stays as it is, and
    t in its correction. Each worker adds its own gradient to the common m, and what is averaged
    is these momenta: as signs and a scale, with feedback for what that leaves out, in shares,
    each of which one worker averages and sends on as signs again, with feedback of its own.

    An element that had no gradient in all of the warm-up, so whose v is 0, stays where it is.

    Source: Tang et al., "1-bit Adam", ICML 2021.

    Parameters
    ----------
    communicator : Communicator
    warmup : int
        Steps until variances stay: as many as take them to be stable, at least one.
    rate : float
        Of learning; `step` may be given another.
    betas : tuple of float
        b1 and b2, from 0 up to 1, 1 left out.
    epsilon : float
        Not negative.
    scale : {"l1", "l2"}
        Of signs: the mean magnitude, with which feedback converges always, or the root mean
        square, as in the paper and DeepSpeed. See `sign`.
    min_size : int
        Momenta of fewer elements are averaged as they are.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import numpy as np
    >>> from gcodec.training import OneBitAdam, Simulator
    >>> def worker(communicator, target):
    ...     adam = OneBitAdam(communicator, warmup=20, rate=0.05, min_size=0)
    ...     x = np.zeros(2, np.float32)
    ...     for step in range(200):
    ...         adam.step({"x": x}, {"x": x - target})
    ...     return x.round(1).tolist()
    >>> Simulator(2).run(worker, [np.float32([1, 2]), np.float32([3, -2])])
    [[2.0, 0.0], [2.0, 0.0]]
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        warmup: int,
        rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        scale: str = "l1",
        min_size: int = 1024,
    ) -> None:
        self.communicator = communicator
        self.warmup = check_integer("warmup", warmup, 1, _MOST, "a number of steps, at least 1")
        self.rate = check_number("rate", rate)
        below, allowed = math.nextafter(1, 0), "from 0 up to 1, 1 left out"
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise ParameterError.of("betas", betas, f"two numbers {allowed}")
        first, second = betas
        self.betas = (
            check_between("betas[0]", first, 0, below, allowed),
            check_between("betas[1]", second, 0, below, allowed),
        )
        self.epsilon = check_between("epsilon", epsilon, 0, math.inf, "a number, not negative")
        if scale not in ("l1", "l2"):
            raise ParameterError.of("scale", scale, "one of l1, l2")
        self.min_size = check_integer("min_size", min_size, 0, _MOST, "a number of elements")
        signs = Sign().replaced(scale=scale)
        self._worker = Feedback(signs, rank=communicator.rank)
        self._server = Feedback(signs, rank=communicator.rank)
        self._steps = 0
        self._momentum: dict[str, np.ndarray] = {}
        self._variance: dict[str, np.ndarray] = {}
        self._inverse: dict[str, np.ndarray] = {}  # of the roots of frozen variances

    @property
    def frozen(self) -> bool:
        """Whether the warm-up is over."""
        return self._steps >= self.warmup

    def step(
        self,
        parameters: Mapping[str, np.ndarray],
        gradients: Mapping[str, Any],
        rate: float | None = None,
    ) -> None:
        """Take one step; all workers call this at once.

        Parameters
        ----------
        parameters : mapping of str to float32 array
            The same on every rank; updated in place.
        gradients : mapping of str to array
            Of this worker, see `gcodec.encode`; with the names, order and shapes of `parameters`.
        rate : float, optional
            Of learning; default: that of the optimiser.

        Raises
        ------
        ParameterError, TypeError
            Nothing has then changed. All ranks raise if one has NaN or Inf, or if a mean, a
            moment or what feedback adds up passes float32.
        """
        rate = self.rate if rate is None else check_number("rate", rate)
        own = state.taken(gradients, self._momentum)
        moved = state.movable(parameters, own)
        check_finite(self.communicator, own)
        if self.frozen:
            inverse = self._inverses(own)
            momentum, variance = self._compressed(own), self._variance
        else:
            momentum, variance = self._warm(own)
            steps = self._steps + 1
            inverse = {name: self._root_inverse(variance[name], steps) for name in own}
        # From here on nothing fails.
        self._momentum, self._variance = {**self._momentum, **momentum}, variance
        self._steps += 1
        correction = 1 - self.betas[0] ** self._steps
        for name, x in moved.items():
            x -= self._momentum[name] * inverse[name] * np.float32(rate / correction)

    def _warm(
        self, own: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return both moments, updated by the mean gradients."""
        means = dense_mean(self.communicator, list(own.values()))
        momentum, variance = {}, dict(self._variance)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, mean in zip(own, means, strict=True):
                momentum[name] = _mean(self._momentum, name, mean, self.betas[0])
                variance[name] = _mean(self._variance, name, mean * mean, self.betas[1])
        check_means([*momentum.values(), *(variance[name] for name in own)])
        return momentum, variance

    def _compressed(self, own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the means of the momenta to which each worker adds its gradient."""
        mine = {name: _mean(self._momentum, name, x, self.betas[0]) for name, x in own.items()}
        large = {name: x for name, x in mine.items() if x.size >= self.min_size}
        small = {name: x for name, x in mine.items() if x.size < self.min_size}
        found: dict[str, np.ndarray] = {}
        if small:
            means = dense_mean(self.communicator, list(small.values()))
            check_means(means)
            found = dict(zip(small, means, strict=True))
        if large:  # last, as it changes what feedback keeps
            found |= two_phase_mean(self.communicator, large, self._worker, self._server)
        return found

    def _inverses(self, own: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name in own:
            if name not in self._variance:
                raise ParameterError.of("gradients", name, "of the names of the warm-up")
            if name not in self._inverse:
                self._inverse[name] = self._root_inverse(self._variance[name], self.warmup)
        return self._inverse

    def _root_inverse(self, variance: np.ndarray, steps: int) -> np.ndarray:
        root = np.sqrt(variance / np.float32(1 - self.betas[1] ** steps))
        root += np.float32(self.epsilon)
        return np.divide(1, root, out=np.zeros_like(root), where=variance > 0)

    def momentum(self, name: str) -> np.ndarray:
        """Return m of a tensor, the same on every rank: a read-only view."""
        return state.shown(self._momentum, name)

    def variance(self, name: str) -> np.ndarray:
        """Return v of a tensor, the same on every rank: a read-only view."""
        return state.shown(self._variance, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return all state as plain arrays, copied; that of feedback differs from rank to rank.

        Returns
        -------
        dict
            ``"step:count"``, ``"momentum:NAME"``, ``"variance:NAME"``; and ``"worker:KEY"``,
            ``"server:KEY"`` with the keys of `Feedback.state_dict`.
        """
        return state.written(
            step={"count": np.array(self._steps, np.int64)},
            momentum=self._momentum,
            variance=self._variance,
            worker=self._worker.state_dict(),
            server=self._server.state_dict(),
        )

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replace all state by that of `state_dict`.

        Raises
        ------
        ParameterError
            If it is not such a dict.
        """
        count, momentum, variance, worker, server = state.read(saved, *_KINDS)
        state.check_alike(momentum, variance)
        steps = count.get("count", np.array(-1))
        if count.keys() != {"count"} or steps.shape or steps.dtype.kind not in "iu" or steps < 0:
            raise ParameterError("state: step:count must be a number of steps")
        self._worker.load_state_dict(worker)
        self._server.load_state_dict(server)
        self._steps, self._momentum, self._variance = int(steps), momentum, variance
        self._inverse = {}


def _mean(means: Mapping[str, np.ndarray], name: str, x: np.ndarray, beta: float) -> np.ndarray:
    """Return the running mean of a name, with x: beta of what was, and the rest of x."""
    new = x * np.float32(1 - beta)
    if name in means:
        new += means[name] * np.float32(beta)
    return new
