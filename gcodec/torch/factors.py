"""PowerSGD in the DDP hook: all-reduces average the factors of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcodec.codecs.powersgd import PowerSGD as PowerSGDCodec
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.kernels.numeric import low_rank
from gcodec.policy import Policy
from gcodec.runtime.arithmetic import exact
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.exchange import Traffic
from gcodec.torch.messages import Part, is_zero
from gcodec.training.collectives import dense_mean
from gcodec.training.powersgd import PowerSGD, nbytes
from gcodec.training.state import check_matching, unpack

_DENSE = "dense:"  # prefix of the names of tensors without factors
_UNFACTORED = 0  # in place of the rank of factors, for residuals from other collectives
_DENSE_RANK = 1  # of the factors, for the method that averages buckets without matrices


def check_factors(policy: Policy) -> None:
    """Raise `ParameterError` unless a policy picks ``powersgd`` or ``raw`` for all tensors."""
    for rule in policy.rules:
        if not isinstance(rule.codec, (PowerSGDCodec, Raw)):
            allowed = "powersgd or raw, because collective='factors' averages factors"
            raise ParameterError.of("codec", str(rule.codec), allowed)


class Factors:
    """Exchange that averages the factors of matrices, and keeps their residuals.

    See `gcodec.torch.exchange.Exchange`, and `BucketCoder` for the methods about state.

    Parameters
    ----------
    communicator : TorchCommunicator
    seed : int
        Seed of the first factors.
    """

    def __init__(self, communicator: TorchCommunicator, seed: int) -> None:
        self._communicator, self._seed = communicator, seed
        self._methods: dict[int, PowerSGD] = {}  # by the rank of the factors
        self._unfactored: dict[str, np.ndarray] = {}  # residuals that no method has taken yet
        # Memories at the start of the step, by the rank of the factors or `_UNFACTORED`.
        self._before: dict[int, dict[str, np.ndarray]] = {}

    @exact
    def average(self, parts: Sequence[Part], step: int, traffic: Traffic) -> None:
        """Replace the values of all parts by their means.

        If a gradient of any rank is not finite, all of them are averaged without compression, so
        that loss scalers see it.
        """
        grouped: dict[int, list[Part]] = {}
        ranks = [part.codec.rank for part in parts if isinstance(part.codec, PowerSGDCodec)]
        first = ranks[0] if ranks else _DENSE_RANK
        for part in parts:
            rank = part.codec.rank if isinstance(part.codec, PowerSGDCodec) else first
            grouped.setdefault(rank, []).append(part)
        owed = self._settle(grouped)
        for rank, members in grouped.items():
            # As a vector, a dense tensor has no factors. It has a name of its own, because the
            # matrix may have a residual of a time when it was not dense.
            gradients, keys = {}, []
            for part in members:
                is_factored = _is_factored(part, rank)
                keys.append(part.name if is_factored else _DENSE + part.name)
                values = part.values if is_factored else part.values.reshape(-1)
                if part.name in owed:
                    values = values + owed[part.name].reshape(-1)
                gradients[keys[-1]] = values
            waiting = [key for key, x in gradients.items() if is_zero(x.reshape(-1))]
            try:
                means = self._methods[rank].average(gradients, waiting=waiting)
            except ParameterError:  # on all ranks
                arrays = list(gradients.values())
                means = dict(zip(gradients, dense_mean(self._communicator, arrays), strict=True))
            for key, part in zip(keys, members, strict=True):
                part.values[...] = means[key].reshape(part.values.shape)
            size = self._communicator.size
            sent = nbytes([x.shape for x in gradients.values()], rank)
            traffic.message_nbytes += sent
            traffic.sent_nbytes += 2 * (size - 1) * sent // size
            traffic.received_nbytes += 2 * (size - 1) * sent // size

    def _settle(self, grouped: Mapping[int, Sequence[Part]]) -> dict[str, np.ndarray]:
        """Give residuals to the methods that now factor their matrices.

        Parameters
        ----------
        grouped : mapping of int to sequence of Part
            Parts by the rank of their factors.

        Returns
        -------
        dict of str to array
            Residuals of tensors that are dense now and take part in the step, for the caller to
            send. No method has them any more.
        """
        for rank in grouped:
            if rank not in self._methods:
                self._methods[rank] = self._new_method(rank)
        memories = self._memories()
        for rank, memory in memories.items():
            self._before.setdefault(rank, dict(memory))
        places = {key: rank for rank, memory in memories.items() for key in memory}
        owed, changed = dict[str, np.ndarray](), set[int]()
        for rank, members in grouped.items():
            for part in members:
                residual_key, start_key = f"residual:{part.name}", f"start:{part.name}"
                place = places.get(residual_key)
                if place is None:
                    continue
                residual = memories[place][residual_key]
                if residual.shape != part.values.shape:  # in a state that was loaded
                    shape = part.values.shape
                    raise ParameterError.of(f"{part.name}.shape", shape, f"{residual.shape}")
                is_factored = _is_factored(part, rank)
                if place == rank if is_factored else is_zero(part.values.reshape(-1)):
                    continue
                changed |= {place, rank}
                del memories[place][residual_key]
                start = memories[place].pop(start_key, None)
                if not is_factored:
                    owed[part.name] = residual
                    continue
                rows = np.zeros((rank, residual.size // len(residual)), np.float32)
                if start is not None:  # the method replaces rows of zeros by random ones
                    count = min(rank, len(start))
                    rows[:count] = start[:count]
                memories[rank] |= {residual_key: residual, start_key: rows}
        for rank in changed:
            self._restore(rank, memories[rank])
        return owed

    def close(self) -> None:
        """Destroy the group, so that members that wait fail soon."""
        self._communicator.close()

    def commit(self) -> None:
        """Keep all changes of the step."""
        self._before.clear()

    def rollback(self) -> None:
        """Undo all changes of the step."""
        for rank, memory in self._before.items():
            self._restore(rank, memory)
        self._before.clear()

    def residual(self, name: str) -> np.ndarray:
        """Return the part of a matrix that this rank has not yet sent."""
        for memory in self._memories().values():
            if f"residual:{name}" in memory:
                return memory[f"residual:{name}"]
        raise ParameterError.of("name", name, "one that was compressed before")

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `PowerSGD.state_dict` of each rank of factors, as after the last step."""
        return {
            f"{rank}:{key}": np.array(array)
            for rank, memory in (self._memories() | self._before).items()
            for key, array in memory.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned, with any ranks of factors."""
        grouped: dict[int, dict[str, Any]] = {}
        for key, array in state.items():
            prefix, _, name = key.partition(":")
            if not prefix.isdecimal():
                raise ParameterError.of("state", key, "RANK:KEY of a PowerSGD.state_dict")
            grouped.setdefault(int(prefix), {})[name] = np.asarray(array)
        [residuals] = unpack(grouped.pop(_UNFACTORED, {}), "residual")
        check_matching(residuals)
        methods = {rank: self._new_method(rank) for rank in grouped}
        for rank, arrays in grouped.items():
            methods[rank].load_state_dict(arrays)
        self._methods = methods
        self._unfactored = {f"residual:{name}": x for name, x in residuals.items()}
        self._before.clear()

    def _new_method(self, rank: int) -> PowerSGD:
        return PowerSGD(self._communicator, rank, seed=self._seed)

    def _memories(self) -> dict[int, dict[str, np.ndarray]]:
        """Return the `PowerSGD.memory` of each rank of factors, and of residuals without any."""
        memories = {rank: method.memory() for rank, method in self._methods.items()}
        return memories | {_UNFACTORED: dict(self._unfactored)}

    def _restore(self, rank: int, memory: Mapping[str, np.ndarray]) -> None:
        if rank == _UNFACTORED:
            self._unfactored = dict(memory)
        else:
            self._methods[rank].restore(memory)


def as_factors(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a state for `Factors.load_state_dict` with the residuals of a `Feedback`."""
    residuals = {key: array for key, array in state.items() if key.startswith("residual:")}
    return {f"{_UNFACTORED}:{key}": array for key, array in residuals.items()}


def _is_factored(part: Part, rank: int) -> bool:
    """Return whether a part is compressed, and its factors of this rank have fewer values."""
    return part.codec is not None and low_rank.matrix_shape(part.values.shape, rank) is not None
