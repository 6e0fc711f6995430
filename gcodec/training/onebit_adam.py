"""1-bit Adam: Adam until its variances have settled, then one bit for each momentum value."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.codecs.sign import Sign
from gcodec.errors import ParameterError
from gcodec.feedback import Feedback, Transaction
from gcodec.runtime.arithmetic import exact
from gcodec.training import state
from gcodec.training.collectives import (
    check_means,
    dense_mean,
    on_all_ranks,
    share_of,
    two_phase,
)
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_choice, check_float32, check_integer

_MAX_COUNT = 2**62
_ANY_SIZE = "; without 'worker:' and 'server:' entries, a state of 1-bit Adam fits any ranks"


class OneBitAdam:
    """Optimizer whose workers send and receive one bit for each element.

    During the first `warmup` steps the gradients are averaged uncompressed, and the optimizer is
    Adam: for the mean gradient g, ``m = b1·m + (1 − b1)·g`` and ``v = b2·v + (1 − b2)·g²``; then
    ``x -= rate · (m/(1 − b1^t)) / (√(v/(1 − b2^t)) + epsilon)``. After the warm-up, v and the t
    of its correction are frozen. Each worker then adds its own gradient to the common m, and the
    workers average these momenta: each worker sends signs and a scale to one server per share,
    and each server sends the mean of its share as signs again. Both directions use error
    feedback.

    An element whose gradient was 0 throughout the warm-up has v = 0 and is never updated.

    Source: Tang et al., "1-bit Adam", ICML 2021.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    warmup : int
        Number of steps until the variances are frozen, at least 1. Choose it so that the
        variances are stable by then.
    rate : float
        Learning rate, finite as float32; `step` accepts another one.
    betas : tuple of float
        Decay factors b1 and b2, each at least 0 and below 1.
    epsilon : float
        Non-negative number added to the root of the variance.
    scale : {"l1", "l2", "deepspeed"}
        Scale of the signs of each share: the mean magnitude, with which error feedback always
        converges, or the root mean square, as in the paper; see `sign`. With "deepspeed", each
        worker takes the root mean square of its whole momentum, as DeepSpeed does, and each
        server that of its share.
    min_size : int
        Momenta with fewer elements are averaged uncompressed.

    Raises
    ------
    ParameterError
        If an argument is out of range.

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

    @exact
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
        allowed = "an integer from 1 to 2**62"
        self.warmup = check_integer("warmup", warmup, 1, _MAX_COUNT, allowed)
        self.rate = check_float32("rate", rate)
        largest, allowed = math.nextafter(1, 0), "a number from 0 to below 1"
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise ParameterError.of("betas", betas, "two numbers from 0 to below 1")
        self.betas = (
            check_between("betas[0]", betas[0], 0, largest, allowed),
            check_between("betas[1]", betas[1], 0, largest, allowed),
        )
        self.epsilon = check_between("epsilon", epsilon, 0, math.inf, "a number, at least 0")
        check_choice("scale", scale, ("l1", "l2", "deepspeed"))
        self.scale = scale
        self.min_size = check_integer("min_size", min_size, 0, _MAX_COUNT, "a number of elements")
        self._has_whole_scale = scale == "deepspeed"
        codec = Sign().replaced(scale="l2" if self._has_whole_scale else scale)
        self._worker = Feedback(codec, rank=communicator.rank)
        self._server = Feedback(codec, rank=communicator.rank)
        self._steps = 0
        self._digest = b""  # of a loaded state, until a step has compared it
        self._compared: tuple[str, ...] | None = None  # parameters that the ranks have compared
        self._momentum: dict[str, np.ndarray] = {}
        self._variance: dict[str, np.ndarray] = {}
        self._inverse_root: dict[str, np.ndarray] = {}  # 1/(√variance + ε), once frozen

    @property
    def frozen(self) -> bool:
        """Whether the warm-up is over."""
        return self._steps >= self.warmup

    @exact
    def step(
        self,
        parameters: Mapping[str, np.ndarray],
        gradients: Mapping[str, TensorLike],
        rate: float | None = None,
    ) -> None:
        """Take one step on all workers, which must call this method together.

        Parameters
        ----------
        parameters : mapping of str to float32 array
            Parameters, equal on every rank; updated in place. The ranks compare them in the first
            step, after `load_state_dict`, and if the names differ from those of the last step.
        gradients : mapping of str to array
            Gradients of this worker, see `gcodec.encode`; with the names, order and shapes of
            `parameters`.
        rate : float, optional
            Learning rate of this step. Default: the learning rate of the optimizer.

        Raises
        ------
        ParameterError, TypeError
            If a gradient of any rank contains NaN or Inf, or a mean, a moment, a step or a sum of
            the feedback exceeds float32, or the parameters or arguments of the ranks differ; then
            all ranks raise. Nothing has changed.
        """
        rate = self.rate if rate is None else check_float32("rate", rate)
        arrays = state.as_float32(gradients, self._momentum)
        targets = state.writable_parameters(parameters, arrays)
        settings = {"warmup": self.warmup, "rate": rate, "betas": self.betas}
        settings |= {"epsilon": self.epsilon, "scale": self.scale, "min_size": self.min_size}
        shared = state.shared(targets, self._compared, **settings)
        on_all_ranks(self.communicator, arrays, lambda: None, self._digest, shared)
        count = self._steps + 1
        factor = np.float32(rate / (1 - self.betas[0] ** count))
        with contextlib.ExitStack() as unless_refused:
            if self.frozen:
                inverse_root = self._frozen_inverse_roots(arrays)
                momentum = self._compressed_momenta(arrays, unless_refused)
                variance = self._variance
            else:
                momentum, variance = self._warmup_moments(arrays)
                inverse_root = {
                    name: self._inverse_root_of(variance[name], count) for name in arrays
                }
            with np.errstate(over="ignore", invalid="ignore"):
                steps = {name: momentum[name] * inverse_root[name] * factor for name in targets}
            state.check_finite("step", steps)
        self._momentum, self._variance = {**self._momentum, **momentum}, variance
        self._steps, self._digest, self._compared = count, b"", tuple(targets)
        for name, x in targets.items():
            x -= steps[name]

    def _warmup_moments(
        self, arrays: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return both moments, updated with the mean gradients."""
        means = dense_mean(self.communicator, list(arrays.values()))
        momentum, variance = {}, dict(self._variance)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, mean in zip(arrays, means, strict=True):
                momentum[name] = _running_mean(self._momentum, name, mean, self.betas[0])
                variance[name] = _running_mean(self._variance, name, mean * mean, self.betas[1])
        check_means([*momentum.values(), *(variance[name] for name in arrays)])
        return momentum, variance

    def _compressed_momenta(
        self, arrays: Mapping[str, np.ndarray], unless_refused: contextlib.ExitStack
    ) -> dict[str, np.ndarray]:
        """Return the means of the momenta, after each worker added its own gradient.

        The feedback keeps its changes if `unless_refused` is left without an exception.
        """
        local = {
            name: _running_mean(self._momentum, name, x, self.betas[0])
            for name, x in arrays.items()
        }
        large = {name: x for name, x in local.items() if x.size >= self.min_size}
        small = {name: x for name, x in local.items() if x.size < self.min_size}
        momenta: dict[str, np.ndarray] = {}
        if small:
            steps = Transaction(self._worker), Transaction(self._server)
            for each in steps:
                unless_refused.push(_commits(each))
            sent = [self._with_residuals(name, x, *steps) for name, x in small.items()]
            means = dense_mean(self.communicator, sent)
            check_means(means)
            momenta = dict(zip(small, means, strict=True))
        if large:
            feedback = self._worker, self._server
            phases = two_phase(self.communicator, large, *feedback, whole=self._has_whole_scale)
            momenta |= unless_refused.enter_context(phases)
        return momenta

    def _with_residuals(
        self, name: str, x: np.ndarray, worker: Transaction, server: Transaction
    ) -> np.ndarray:
        """Return a small tensor plus what this rank owes from a time when it was not small."""
        rank, size = self.communicator.rank, self.communicator.size
        keys = [name] if self._has_whole_scale else [f"{i}/{name}" for i in range(size)]
        if not (server.knows(name) or any(map(worker.knows, keys))):
            return x
        total = x.copy()
        shares = [share_of(total, i, size) for i in range(size)]
        if self._has_whole_scale:
            shares = [total]
        owed = [(worker, key, share, 1) for key, share in zip(keys, shares, strict=True)]
        # The owner of a share owes its residual to the mean.
        owed.append((server, name, share_of(total, rank, size), size))
        for steps, key, share, factor in owed:
            residual = steps.take_residual(key, share.shape) if steps.knows(key) else None
            if residual is not None:
                share += residual * np.float32(factor)
        return total

    def _frozen_inverse_roots(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for name in arrays:
            if name not in self._variance:
                raise ParameterError.of("gradients", name, "one of the names of the warm-up")
            if name not in self._inverse_root:
                inverse = self._inverse_root_of(self._variance[name], self.warmup)
                self._inverse_root[name] = inverse
        return self._inverse_root

    def _inverse_root_of(self, variance: np.ndarray, steps: int) -> np.ndarray:
        root = np.sqrt(variance / np.float32(1 - self.betas[1] ** steps))
        root += np.float32(self.epsilon)
        return np.divide(1, root, out=np.zeros_like(root), where=variance > 0)

    def momentum(self, name: str) -> np.ndarray:
        """Return the momentum m of a tensor, equal on every rank: a read-only view."""
        return state.view(self._momentum, name)

    def variance(self, name: str) -> np.ndarray:
        """Return the variance v of a tensor, equal on every rank: a read-only view."""
        return state.view(self._variance, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all state as plain arrays; the feedback differs between ranks.

        Returns
        -------
        dict
            ``"step:count"``, ``"momentum:NAME"`` and ``"variance:NAME"``; ``"worker:KEY"`` and
            ``"server:KEY"`` with the keys of `Feedback.state_dict`; and ``"place:rank"`` and
            ``"place:size"``, the rank and the number of ranks.
        """
        return state.pack(
            step={"count": np.array(self._steps, np.int64)},
            momentum=self._momentum,
            variance=self._variance,
            worker=self._worker.state_dict(),
            server=self._server.state_dict(),
            place=state.place_of(self.communicator),
        )

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Replace all state by a dict that `state_dict` returned.

        All ranks load the same checkpoint: the next step fails on all of them if their steps,
        momenta or variances differ. Without the entries ``"worker:KEY"`` and ``"server:KEY"``, a
        state fits any number of ranks; what the former ranks had not sent is then lost.

        Raises
        ------
        ParameterError
            If `saved` is not such a dict, or has entries of another rank or number of ranks. No
            state has changed.
        """
        count, momentum, variance, worker, server, place = state.unpack(
            saved, "step", "momentum", "variance", "worker", "server", "place"
        )
        if worker or server:
            state.check_place(place, self.communicator, _ANY_SIZE)
        state.check_matching(momentum, variance)
        steps = count.get("count", np.array(-1))
        if count.keys() != {"count"} or steps.shape or steps.dtype.kind not in "iu" or steps < 0:
            raise ParameterError("state: step:count must be an integer scalar, at least 0")
        feedbacks = copy.copy(self._worker), copy.copy(self._server)
        for feedback, arrays in zip(feedbacks, (worker, server), strict=True):
            feedback.load_state_dict(arrays)
        self._worker, self._server = feedbacks
        self._steps, self._momentum, self._variance = int(steps), momentum, variance
        self._inverse_root = {}
        self._digest = state.digest(step=count, momentum=momentum, variance=variance)
        self._compared = None


def _commits(steps: Transaction) -> Callable[..., None]:
    """Return a function for an `ExitStack`, which commits, or rolls back after an exception."""
    return lambda kind, *_: steps.commit() if kind is None else steps.rollback()


def _running_mean(
    means: Mapping[str, np.ndarray], name: str, x: np.ndarray, beta: float
) -> np.ndarray:
    """Return beta times the named mean, if there is one, plus (1 − beta)·x."""
    mean = x * np.float32(1 - beta)
    if name in means:
        mean += means[name] * np.float32(beta)
    return mean
