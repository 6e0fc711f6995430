"""Steps of error feedback that are committed together or rolled back together."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import inspect
from gcodec.codec import Symbols
from gcodec.errors import ParameterError
from gcodec.feedback.feedback import Feedback
from gcodec.feedback.states import GroupStep, Memory, is_no_residual
from gcodec.frame import GROUP_BELOW
from gcodec.runtime import Array
from gcodec.wire.primitives import encode_name


class Transaction:
    """Steps of a `Feedback` that are committed together or rolled back together.

    A training step compresses many tensors. If the step turns out to be invalid, `rollback`
    restores the residual, step count and prior of all of them. Until `commit` or `rollback`, each
    replaced residual takes a second array.

    Parameters
    ----------
    feedback : Feedback
        Object whose steps this transaction controls.
    """

    def __init__(self, feedback: Feedback) -> None:
        self.feedback = feedback
        self._before: dict[str, Memory] = {}

    def compress(self, name: str, grad: TensorLike, *, key: bytes | None = None) -> bytes:
        """Compress as `Feedback.compress` does; the first call for a name records its memory."""
        encode_name(name)
        self.record(name)
        return self.feedback.compress(name, grad, key=key)

    def compress_known(
        self, name: str, grad: TensorLike, *, key: bytes | None = None
    ) -> tuple[bytes, Symbols]:
        """Compress as `compress` does, and also return the symbols in the frame."""
        encode_name(name)
        self.record(name)
        return self.feedback._compress(name, grad, key, keeps_symbols=True)

    def compress_many(
        self,
        grads: Mapping[str, TensorLike],
        *,
        group_below: int = GROUP_BELOW,
        key: bytes | None = None,
    ) -> bytes:
        """Compress as `Feedback.compress_many` does, and record the memory of new names."""
        self.record(*grads)
        return self.feedback.compress_many(grads, group_below=group_below, key=key)

    def compress_resident(
        self, grads: Mapping[str, TensorLike], key: bytes | None
    ) -> dict[str, bytes]:
        """Compress tensors of one device, all or none of them; the host waits once."""
        self.record(*grads)
        sources = {name: inspect(grad, "grad") for name, grad in grads.items()}
        feedback, tensors = self.feedback, self.feedback._tensors
        if not sources:
            return {}

        def run() -> dict[str, bytes]:
            results = feedback._run_resident(tensors, sources, key)
            feedback._finish_many(tensors, results.values())
            return {name: frame for name, (frame, _, _) in results.items()}

        return tensors.while_locked(sources, run)

    def compress_shared(
        self, grads: Mapping[str, TensorLike], group_below: int, key: bytes | None
    ) -> list[GroupStep]:
        """Compress the tensors that share frames, and no others; see `Feedback.compress_many`."""
        self.record(*grads)
        feedback, tensors = self.feedback, self.feedback._tensors
        sources = {name: inspect(grad, "grad") for name, grad in grads.items()}

        def run() -> list[GroupStep]:
            grouped = feedback._grouped(sources, group_below)
            groups = [feedback._run_group(tensors, group, key) for group in grouped]
            feedback._finish_many(tensors, [], groups)
            return groups

        return tensors.while_locked(grads, run)

    def knows(self, name: str) -> bool:
        """Return whether the tensor has a state."""
        return name in self.feedback._tensors.states

    def take_residual(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """Return the residual of a tensor times the decay, for the caller to send it exactly.

        The state of the tensor is forgotten. The result is None if nothing was left over.

        Raises
        ------
        ParameterError
            If the residual has another shape; nothing changes then.
        """
        self.record(name)
        memory = self.feedback.memory(name)
        try:
            residual = memory.residual
            if residual is not None and residual.shape != shape:
                allowed = f"{residual.shape} for {name!r}"
                raise ParameterError.of("grad.shape", shape, allowed)
            self.feedback.restore(name, Memory(None, 0, None))
            if residual is None or is_no_residual(residual):
                return None
            return residual * np.float32(self.feedback.decay)
        finally:
            self.feedback.forget(name, memory)

    def record(self, *names: str) -> None:
        """Keep the memory of tensors, unless that is done, because a step may change it."""
        for name in names:
            if name not in self._before:
                self._before[name] = self.feedback.memory(name)

    def commit(self) -> None:
        """Keep all steps since the last commit or rollback."""
        before, self._before = self._before, {}
        for name, memory in before.items():
            self.feedback.forget(name, memory)

    def rollback(self) -> None:
        """Undo all steps since the last commit or rollback."""
        for name, memory in self._before.items():
            self.feedback.restore(name, memory)
        self.commit()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the `Feedback.state_dict` without the steps that are not committed."""
        before = copy.copy(self.feedback)
        for name, memory in self._before.items():
            before.restore(name, memory)
        return before.state_dict()
