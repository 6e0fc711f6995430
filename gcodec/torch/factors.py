"""PowerSGD in the DDP hook: all-reduces average the factors of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gcodec.codecs.powersgd import PowerSGD as PowerSGDCodec
from gcodec.codecs.raw import Raw
from gcodec.errors import ParameterError
from gcodec.policy import Policy
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.exchange import Traffic
from gcodec.torch.messages import Part, is_zero
from gcodec.training.collectives import dense_mean
from gcodec.training.powersgd import PowerSGD, nbytes

_DENSE = "dense:"  # prefix of the names of tensors without factors
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
        self._before: dict[int, dict[str, np.ndarray]] = {}  # memories at the start of the step

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
        for rank, members in grouped.items():
            method = self._method(rank)
            memory = method.memory()
            self._before.setdefault(rank, memory)
            # As a vector, a dense tensor has no factors. It has a name of its own, because the
            # matrix may have a residual of a time when it was not dense.
            keys = [name if codec is not None else _DENSE + name for name, _, codec in members]
            gradients = {
                key: values if codec is not None else values.reshape(-1)
                for key, (_, values, codec) in zip(keys, members, strict=True)
            }
            for key, gradient in gradients.items():
                shape = memory.get(f"residual:{key}", gradient).shape
                if gradient.shape != shape:  # in a state that was loaded
                    raise ParameterError.of(f"{key}.shape", gradient.shape, f"{shape}")
            waiting = [key for key, x in gradients.items() if is_zero(x.reshape(-1))]
            try:
                means = method.average(gradients, waiting=waiting)
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

    def close(self) -> None:
        """Destroy the group, so that members that wait fail soon."""
        self._communicator.close()

    def commit(self) -> None:
        """Keep all changes of the step."""
        self._before.clear()

    def rollback(self) -> None:
        """Undo all changes of the step."""
        for rank, memory in self._before.items():
            self._methods[rank].restore(memory)
        self._before.clear()

    def residual(self, name: str) -> np.ndarray:
        """Return the part of a matrix that this rank has not yet sent."""
        for method in self._methods.values():
            if f"residual:{name}" in method.memory():
                return method.residual(name)
        raise ParameterError.of("name", name, "one that was compressed before")

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `PowerSGD.state_dict` of each rank of factors, as after the last step."""
        state: dict[str, np.ndarray] = {}
        for rank, method in self._methods.items():
            memory = self._before.get(rank, method.memory())
            state |= {f"{rank}:{key}": np.array(array) for key, array in memory.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned."""
        grouped: dict[str, dict[str, Any]] = {}
        for key, array in state.items():
            rank, _, name = key.partition(":")
            if not rank.isdecimal():
                raise ParameterError.of("state", key, "RANK:KEY of a PowerSGD.state_dict")
            grouped.setdefault(rank, {})[name] = np.asarray(array)
        methods = {int(rank): self._new_method(int(rank)) for rank in grouped}
        for rank, arrays in grouped.items():
            methods[int(rank)].load_state_dict(arrays)
        self._methods = methods
        self._before.clear()

    def _new_method(self, rank: int) -> PowerSGD:
        return PowerSGD(self._communicator, rank, seed=self._seed)

    def _method(self, rank: int) -> PowerSGD:
        if rank not in self._methods:
            self._methods[rank] = self._new_method(rank)
        return self._methods[rank]
