"""PowerSGD: workers average low-rank factors of their gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import size_of
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.philox import check_seed
from gcodec.kernels.numeric.products import put_product
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.memory import aligned_empty
from gcodec.training import state
from gcodec.training.collectives import check_means, low_rank_mean, on_all_ranks
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_between, check_float32, check_integer

_MAX_RANK = 1 << 16
_MAX_NORM = 2.0**126
_ANY_SIZE = "; without 'residual:' and 'start:' entries, a state of PowerSGD fits any ranks"


class PowerSGD:
    """Low-rank means of gradients with error feedback, and the optimizer that applies them.

    A tensor of two or more dimensions is a matrix: its first dimension by all others. For M, the
    gradient plus its residual, all workers take one step of the power method together. L is the
    mean of M·Rᵀ, made orthonormal, and the new R is the mean of LᵀM. The mean gradient is
    approximately L·R, each worker keeps the residual M − L·LᵀM, and the next step starts from R.
    If the factors have no fewer values than the gradient, as for vectors, the gradient is
    averaged uncompressed and leaves no residual.

    Source: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
    optimization", NeurIPS 2019, algorithms 1 and 2.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    rank : int
        Number of columns of L and rows of R, 1 to 65536.
    momentum : float
        Momentum factor of `step`, from 0 to 1.
    seed : int
        Seed of the first R; equal on every rank.

    Raises
    ------
    ParameterError
        If an argument is out of range.

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
        self, communicator: Communicator, rank: int = 4, *, momentum: float = 0.9, seed: int = 0
    ) -> None:
        self.communicator = communicator
        allowed = f"an integer from 1 to {_MAX_RANK}"
        self.rank = check_integer("rank", rank, 1, _MAX_RANK, allowed)
        self.momentum = check_between("momentum", momentum, 0, 1, "a number from 0 to 1")
        self.seed = check_seed(seed)
        self._residual: dict[str, np.ndarray] = {}
        self._start: dict[str, np.ndarray] = {}  # R
        self._momentum: dict[str, np.ndarray] = {}
        self._digest = b""  # of loaded momenta, until a step has compared them
        self._compared: tuple[str, ...] | None = None  # parameters that the ranks have compared

    @exact
    def average(
        self, gradients: Mapping[str, TensorLike], *, waiting: Collection[str] = ()
    ) -> dict[str, np.ndarray]:
        """Average one step's gradients of all workers, which must call this method together.

        Parameters
        ----------
        gradients : mapping of str to array
            Gradients of this worker; see `gcodec.encode`. Names, shapes and order are the same on
            every rank.
        waiting : collection of str
            Names of tensors whose residuals wait, so that this worker sends none of them. Their
            gradients must be zeros.

        Returns
        -------
        dict of str to float32 array
            Mean of each tensor, of rank `rank` or uncompressed, in the tensor's shape.

        Raises
        ------
        ParameterError, TypeError
            If a gradient of any rank contains NaN or Inf, if a gradient plus its residual has a
            norm of 2**126 or more, or if a mean exceeds float32; then all ranks raise. No state
            has changed.
        """
        means, residual, start = self._average(gradients, waiting=waiting)
        self._residual |= residual
        self._start |= start
        self._digest = b""
        return means

    def _average(
        self,
        gradients: Mapping[str, TensorLike],
        shared: bytes = b"",
        waiting: Collection[str] = (),
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the means, and the new residual and start of each factored tensor."""
        arrays = state.as_float32(gradients, self._momentum | self._residual)
        sizes = {name: low_rank.matrix_shape(x.shape, self.rank) for name, x in arrays.items()}
        factored = {name: size for name, size in sizes.items() if size is not None}

        kept = {name: self._residual[name] for name in waiting if name in self._residual}

        def corrected() -> dict[str, np.ndarray]:
            matrices = {}
            for name, size in factored.items():
                x = arrays[name]
                matrices[name] = (x if name in kept else self._corrected(name, x)).reshape(size)
            return matrices

        matrices = on_all_ranks(self.communicator, arrays, corrected, self._digest, shared)
        dense = [name for name in arrays if name not in factored]
        factors, dense_means = low_rank_mean(
            self.communicator,
            list(matrices.values()),
            [self._start_rows(name, k) for name, (_, k) in factored.items()],
            [arrays[name] for name in dense],
        )
        means, residual, start = dict(zip(dense, dense_means, strict=True)), {}, {}
        for (name, matrix), (p, q, local_q) in zip(matrices.items(), factors, strict=True):
            shape = arrays[name].shape
            mean, sent = (aligned_empty(matrix.size, np.float32) for _ in range(2))
            put_product(p, local_q, sent)
            put_product(p, q, mean)
            means[name], start[name] = mean.reshape(shape), q
            residual[name] = matrix.reshape(shape) - sent.reshape(shape)
        check_means(means.values())
        return {name: means[name] for name in arrays}, residual | kept, start

    def _corrected(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return a gradient plus its residual."""
        if name in self._residual:
            with np.errstate(over="ignore"):
                x = x + self._residual[name]
        # A projection is no longer than x, so with this bound neither it nor the new residual
        # exceeds float32.
        if not sum_squares(x.reshape(-1)) < _MAX_NORM**2:
            reason = f"{name!r} and its residual are too large"
            raise ParameterError(f"matrices: factors must not exceed float32: {reason}")
        return x

    def _start_rows(self, name: str, k: int) -> np.ndarray:
        """Return R of the preceding step, with random rows in place of missing or zero rows."""
        rows = low_rank.start(derive_seed(self.seed, name=name), self.rank, k)
        if name in self._start:
            nonzero = self._start[name].any(axis=1)
            rows[nonzero] = self._start[name][nonzero]
        return rows

    @exact
    def step(
        self,
        parameters: Mapping[str, np.ndarray],
        gradients: Mapping[str, TensorLike],
        rate: float,
    ) -> None:
        """Average the gradients, and take a step with momentum.

        With D the mean, the step computes ``m = momentum·m + D`` and ``x -= rate·(D + m)``.
        Momentum is applied after the compression, so it does not affect the residuals.

        Parameters
        ----------
        parameters : mapping of str to float32 array
            Parameters, equal on every rank; updated in place. The ranks compare them in the first
            step, after `load_state_dict`, and if the names differ from those of the last step.
        gradients : mapping of str to array
            Gradients of this worker, see `average`; with the names and shapes of `parameters`.
        rate : float
            Learning rate, finite as float32.

        Raises
        ------
        ParameterError, TypeError
            As for `average`, or if a momentum or a step exceeds float32, or if the parameters or
            arguments of the ranks differ. Nothing has changed.
        """
        rate = check_float32("rate", rate)
        targets = state.writable_parameters(parameters, gradients)
        settings = {"rank": self.rank, "momentum": self.momentum, "seed": self.seed, "rate": rate}
        shared = state.shared(targets, self._compared, **settings)
        means, residual, start = self._average(gradients, shared)
        momentum = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, mean in means.items():
                momentum[name] = mean.copy()
                if name in self._momentum:
                    momentum[name] += self._momentum[name] * np.float32(self.momentum)
                mean += momentum[name]
                mean *= np.float32(rate)
        state.check_finite("step", means)  # and so the momenta, which the steps contain
        self._residual |= residual
        self._start |= start
        self._digest, self._compared = b"", tuple(targets)
        self._momentum |= momentum
        for name, step in means.items():
            targets[name][...] -= step

    def residual(self, name: str) -> np.ndarray:
        """Return the residual that this worker keeps of a factored tensor: a read-only view."""
        return state.view(self._residual, name)

    def memory(self) -> dict[str, np.ndarray]:
        """Return all state like `state_dict`, but without copies: do not write to it."""
        groups = {"residual": self._residual, "start": self._start, "momentum": self._momentum}
        return {f"{group}:{name}": x for group, xs in groups.items() for name, x in xs.items()}

    def restore(self, memory: Mapping[str, np.ndarray]) -> None:
        """Return to the state of a `memory`, to undo steps whose means were not used."""
        groups = state.unpack(memory, "residual", "start", "momentum")
        self._residual, self._start, self._momentum = groups

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all state as plain arrays; the residuals differ between ranks.

        Returns
        -------
        dict
            ``"residual:NAME"`` and ``"start:NAME"`` of factored tensors, and ``"momentum:NAME"``;
            and ``"place:rank"`` and ``"place:size"``, the rank and the number of ranks.
        """
        copies = {key: np.array(array) for key, array in self.memory().items()}
        return copies | state.pack(place=state.place_of(self.communicator))

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Replace all state by a dict that `state_dict` returned.

        All ranks load the same checkpoint: the next step fails on all of them if their momenta
        differ.

        Raises
        ------
        ParameterError
            If `saved` is not such a dict, or belongs to another parameter `rank`, or has residuals
            of another rank or number of ranks of the group. No state has changed.
        """
        groups = "residual", "start", "momentum", "place"
        residual, start, momentum, place = state.unpack(saved, *groups)
        if residual:
            state.check_place(place, self.communicator, _ANY_SIZE)
        for arrays in (residual, start, momentum):
            state.check_matching(arrays)
        expected = {}
        for name, array in residual.items():
            sizes = low_rank.matrix_shape(array.shape, self.rank)
            expected[name] = None if sizes is None else (self.rank, sizes[1])
        if expected != {name: array.shape for name, array in start.items()}:
            others = {len(array) for array in start.values()} - {self.rank}
            if len(others) == 1:
                allowed = f"{others.pop()}, as in the run that saved the state"
                raise ParameterError.of("rank", self.rank, allowed)
            raise ParameterError(f"state: each residual must have a start of {self.rank} rows")
        for name in residual.keys() & momentum.keys():
            state.check_matching({name: residual[name]}, {name: momentum[name]})
        self._residual, self._start, self._momentum = residual, start, momentum
        self._digest = state.digest(momentum=momentum) if momentum else b""
        self._compared = None


def nbytes(shapes: Iterable[tuple[int, ...]], rank: int) -> int:
    """Return the number of bytes that workers average for tensors of these shapes."""
    count = 0
    for shape in shapes:
        sizes = low_rank.matrix_shape(tuple(shape), rank)
        count += size_of(shape) if sizes is None else rank * sum(sizes)
    return 4 * count
