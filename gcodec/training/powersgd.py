"""PowerSGD: workers average the factors of their gradients in place of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.intake import size_of
from gcodec.codecs.powersgd import low_rank
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.products import put_product
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.runtime.memory import aligned_empty
from gcodec.training import state
from gcodec.training.collectives import check_means, low_rank_mean, prepared
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_integer, check_number

_MOST_RANK = 1 << 16
_MOST_NORM = 2.0**126
_KINDS = ("residual", "start", "momentum")


class _Step(NamedTuple):
    """What a step makes of its gradients.

    Attributes
    ----------
    means : dict of str to float32 array
    residual, start : dict of str to float32 array
        Of factored tensors, after the step.
    """

    means: dict[str, np.ndarray]
    residual: dict[str, np.ndarray]
    start: dict[str, np.ndarray]


class PowerSGD:
    """Feedback around low-rank means of gradients, and the optimiser for them.

    A tensor of two or more dimensions is a matrix of its first dimension and all others. Of M,
    gradient and error, all workers take one step of the power method together: P is the mean of
    M·Qᵀ, made orthonormal, and the new Q the mean of PᵀM. The mean gradient is about P·Q, the
    error that this worker keeps is M − P·PᵀM, and the next step begins with Q. Where factors
    have no fewer values, as for vectors, gradients are averaged as they are, and leave no error.

    Source: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
    optimization", NeurIPS 2019, algorithms 1 and 2.

    Parameters
    ----------
    communicator : Communicator
    rank : int
        Columns of P and rows of Q, 1 to 65536.
    momentum : float
        Of `step`, from 0 to 1.
    seed : int
        Of the first Q; the same on every rank.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import numpy as np
    >>> from gcodec.training import PowerSGD, Simulator
    >>> def worker(communicator, gradient):
    ...     method = PowerSGD(communicator, rank=1)
    ...     return method.average({"w": gradient})["w"].round(3)
    >>> gradients = [np.outer([2, 4, 0], [1, -2]), np.outer([0, 0, 6], [1, -2])]
    >>> Simulator(2).run(worker, [np.float32(g) for g in gradients])[0]
    array([[ 1., -2.],
           [ 2., -4.],
           [ 3., -6.]], dtype=float32)
    """

    def __init__(
        self,
        communicator: Communicator,
        rank: int = 4,
        *,
        momentum: float = 0.9,
        seed: int = 0,
    ) -> None:
        self.communicator = communicator
        allowed = f"an integer from 1 to {_MOST_RANK}"
        self.rank = check_integer("rank", rank, 1, _MOST_RANK, allowed)
        self.momentum = check_between("momentum", momentum, 0, 1, "a number from 0 to 1")
        self.seed = check_seed(seed)
        self._residual: dict[str, np.ndarray] = {}
        self._start: dict[str, np.ndarray] = {}  # Q
        self._momentum: dict[str, np.ndarray] = {}

    def average(self, gradients: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Average one step's gradients of all workers; all call this at once.

        Parameters
        ----------
        gradients : mapping of str to array
            See `gcodec.encode`; with the same names, shapes and order on every rank.

        Returns
        -------
        dict of str to float32 array
            The means, of that rank or as they are, in the shapes of the gradients.

        Raises
        ------
        ParameterError, TypeError
            Nothing has then changed. All ranks raise if one has NaN or Inf, if a gradient with
            its error has a norm of 2**126 or above, or if a mean passes float32.
        """
        step = self._step(gradients)
        self._keep(step)
        return step.means

    def _step(self, gradients: Mapping[str, Any]) -> _Step:
        """Return one step's means, and what it is to change."""
        own = state.taken(gradients, self._momentum | self._residual)
        sizes = {name: low_rank.matrix_shape(x.shape, self.rank) for name, x in own.items()}
        factored = {name: size for name, size in sizes.items() if size is not None}

        def corrected() -> dict[str, np.ndarray]:
            return {
                name: self._corrected(name, own[name]).reshape(size)
                for name, size in factored.items()
            }

        matrices = prepared(self.communicator, own, corrected)
        whole = [name for name in own if name not in factored]
        starts = [self._started(name, k) for name, (_, k) in factored.items()]
        found, means = low_rank_mean(
            self.communicator, list(matrices.values()), starts, [own[name] for name in whole]
        )
        done, residual, start = dict(zip(whole, means, strict=True)), {}, {}
        for name, factors in zip(factored, found, strict=True):
            matrix, shape = matrices[name], own[name].shape
            mean, mine = (aligned_empty(matrix.size, np.float32) for _ in range(2))
            put_product(factors.p, factors.own, mine)
            put_product(factors.p, factors.q, mean)
            done[name], start[name] = mean.reshape(shape), factors.q
            residual[name] = matrix.reshape(shape) - mine.reshape(shape)
        check_means(done.values())
        return _Step({name: done[name] for name in own}, residual, start)

    def _keep(self, step: _Step) -> None:
        self._residual |= step.residual
        self._start |= step.start

    def _corrected(self, name: str, x: np.ndarray) -> np.ndarray:
        if name in self._residual:
            with np.errstate(over="ignore"):
                x = x + self._residual[name]
        # Projections are no longer than it is: neither they nor what they leave pass float32.
        if not sum_squares(x.reshape(-1)) < _MOST_NORM**2:
            what = f"{name!r} and its error are too large"
            raise ParameterError(f"matrices: factors must not pass float32: {what}")
        return x

    def _started(self, name: str, k: int) -> np.ndarray:
        """Return Q of the step before, with random rows where it has none, or is 0."""
        rows = low_rank.start(derive_seed(self.seed, name=name), self.rank, k)
        if name in self._start:
            known = self._start[name].any(axis=1)
            rows[known] = self._start[name][known]
        return rows

    def step(
        self, parameters: Mapping[str, np.ndarray], gradients: Mapping[str, Any], rate: float
    ) -> None:
        """Average gradients, and take a step with momentum.

        With D the mean, ``m = momentum·m + D`` and ``x -= rate·(D + m)``: as momentum comes
        behind what is compressed, errors have none.

        Parameters
        ----------
        parameters : mapping of str to float32 array
            The same on every rank; updated in place.
        gradients : mapping of str to array
            See `average`; with the names and shapes of `parameters`.
        rate : float
            Of learning.

        Raises
        ------
        ParameterError, TypeError
            Nothing has then changed.
        """
        rate = check_number("rate", rate)
        moved = state.movable(parameters, gradients)
        step = self._step(gradients)
        momentum = {}
        with np.errstate(over="ignore"):
            for name, mean in step.means.items():
                momentum[name] = mean.copy()
                if name in self._momentum:
                    momentum[name] += self._momentum[name] * np.float32(self.momentum)
        check_means(momentum.values())
        self._keep(step)
        self._momentum |= momentum
        for name, mean in step.means.items():
            mean += momentum[name]
            mean *= np.float32(rate)
            moved[name][...] -= mean

    def residual(self, name: str) -> np.ndarray:
        """Return the error that this worker keeps of a factored tensor: a read-only view."""
        return state.shown(self._residual, name)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return all state as float32 arrays, copied; residuals differ from rank to rank.

        Returns
        -------
        dict
            ``"residual:NAME"`` and ``"start:NAME"`` of factored tensors; ``"momentum:NAME"``.
        """
        return state.written(residual=self._residual, start=self._start, momentum=self._momentum)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Replace all state by that of `state_dict`.

        Raises
        ------
        ParameterError
            If it is not such a dict, or of another rank; nothing is then replaced.
        """
        residual, start, momentum = state.read(saved, *_KINDS)
        for arrays in (residual, start, momentum):
            state.check_alike(arrays)
        expected = {}
        for name, array in residual.items():
            sizes = low_rank.matrix_shape(array.shape, self.rank)
            expected[name] = None if sizes is None else (self.rank, sizes[1])
        if expected != {name: array.shape for name, array in start.items()}:
            raise ParameterError(f"state: each residual must have a start of {self.rank} rows")
        for name in residual.keys() & momentum.keys():
            state.check_alike({name: residual[name]}, {name: momentum[name]})
        self._residual, self._start, self._momentum = residual, start, momentum


def nbytes(shapes: Iterable[tuple[int, ...]], rank: int) -> int:
    """Return the bytes that are averaged of tensors of these shapes, in place of their own."""
    count = 0
    for shape in shapes:
        sizes = low_rank.matrix_shape(tuple(shape), rank)
        count += size_of(shape) if sizes is None else rank * sum(sizes)
    return 4 * count
