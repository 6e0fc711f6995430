"""gcodec for NVIDIA FLARE: filters that send arrays as frames.

For results, `FrameEncoder` is a filter of the clients, and `FrameDecoder` one of the server. For
the weights that clients receive, the server encodes and the clients decode, each by a data filter.
Needs the extra ``nvflare``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

try:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.dxo_filter import DXOFilter
except ImportError as error:
    raise ImportError(
        "gcodec.nvflare needs NVIDIA FLARE: pip install 'gcodec[nvflare]'"
    ) from error

from gcodec.api import encode
from gcodec.arrays.nonfinite import has_nonfinite
from gcodec.codec import CodecLike
from gcodec.errors import Corrupt, LimitExceeded
from gcodec.feedback import Feedback, Transaction, derive_seed
from gcodec.frame import Frame
from gcodec.limits import Limits
from gcodec.policy import Policy, policy_of
from gcodec.wire.kinds import check_flag, check_integer, check_positive
from gcodec.wire.primitives import FLOATS, FLOATS8

__all__ = ["FrameDecoder", "FrameEncoder"]

_KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
_NAMES = "gcodec.frames"  # property of a DXO: the names of the arrays that are frames


class FrameEncoder(DXOFilter):
    """Filter that replaces arrays by frames.

    Differences of weights are compressed with error feedback. Weights themselves are compressed
    without it, and integers and floats of 8 bits without loss. If the codec refuses an array
    because it contains NaN or Inf, the task of this client fails.

    Parameters
    ----------
    codec : str, mapping, Codec, Policy or list
        Codec of arrays; see `gcodec.parse` and `gcodec.Policy`. The configuration of a job states
        it as text, or as the list of the rules of a policy.
    feedback : bool
        Whether to add to each difference of weights what the preceding one left out.
    decay : float
        Factor of the residual in each round; see `gcodec.Feedback`.
    seed : int
        Seed for stochastic rounding; each client should have its own.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import gcodec.nvflare, numpy as np
    >>> from nvflare.apis.dxo import DXO, DataKind
    >>> from nvflare.apis.fl_context import FLContext
    >>> update = DXO(DataKind.WEIGHT_DIFF, {"layer": np.ones((64, 32), np.float32)})
    >>> encoder, decoder = gcodec.nvflare.FrameEncoder("sign"), gcodec.nvflare.FrameDecoder()
    >>> sent = encoder.process_dxo(update, None, FLContext())
    >>> len(sent.data["layer"])
    288
    >>> decoder.process_dxo(sent, None, FLContext()).data["layer"].shape
    (64, 32)
    """

    def __init__(
        self,
        codec: CodecLike | Policy | list[dict[str, object]],
        feedback: bool = True,
        decay: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(_KINDS, _KINDS)
        policy = Policy(codec) if isinstance(codec, list) else policy_of(codec)
        self._memory, self._rounds = Feedback(policy, decay=decay, seed=seed), 0
        # NVIDIA FLARE's FedJob writes the attributes with the names of parameters, as JSON.
        self._codec = codec if isinstance(codec, str) else policy.to_dict()["rules"]
        self._feedback = check_flag("feedback", feedback)
        self._decay, self._seed = float(decay), int(seed)

    def process_dxo(self, dxo: DXO, shareable: object, fl_ctx: object) -> DXO:
        """Return a DXO with frames in place of arrays."""
        step, frames = Transaction(self._memory), dict[str, bytes]()
        has_feedback = self._feedback and dxo.data_kind == DataKind.WEIGHT_DIFF
        try:
            for name, array in dxo.data.items():
                if not isinstance(array, np.ndarray):
                    continue
                if array.dtype.name not in FLOATS:
                    frames[name] = encode(array, "raw", name=name)
                elif has_feedback:
                    frames[name] = step.compress(name, array)
                else:
                    seed = derive_seed(self._seed, name=name, step=self._rounds)
                    frames[name] = encode(array, self._memory.codec, seed=seed, name=name)
        except BaseException:  # no frame is sent
            step.rollback()
            raise
        step.commit()
        self._rounds += 1
        meta = {**(dxo.meta or {}), _NAMES: [*frames]}
        return DXO(dxo.data_kind, {**dxo.data, **frames}, meta)


class FrameDecoder(DXOFilter):
    """Filter that replaces frames by arrays.

    On the server, a result that is damaged or hostile raises an error, which NVIDIA FLARE logs;
    the workflow receives TASK_RESULT_FILTER_ERROR in its place, and goes on with the other
    clients.

    Parameters
    ----------
    max_norm : float, optional
        Largest allowed L2 norm of all floats and complex numbers together, in arrays or not.
        Integers do not count. Default: any finite ones are allowed.
    max_elements : int
        Largest number of elements of an array; see `gcodec.Limits`.
    max_total_elements : int, optional
        Largest number of elements of all arrays together that arrive as frames; a small frame may
        have many elements. Default: any number, because the filter does not know the model.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import gcodec.nvflare
    >>> filter = gcodec.nvflare.FrameDecoder(max_norm=10.0)
    """

    def __init__(
        self,
        max_norm: float | None = None,
        max_elements: int = 2**28,
        max_total_elements: int | None = None,
    ) -> None:
        super().__init__(_KINDS, _KINDS)
        limits = Limits(max_elements=max_elements)
        self._limits = dataclasses.replace(limits, max_bytes=8 * max_elements)
        # See `FrameEncoder` for the names of these attributes.
        self._max_norm = None if max_norm is None else check_positive("max_norm", max_norm)
        self._max_elements = limits.max_elements
        self._max_total_elements = max_total_elements
        if max_total_elements is not None:
            allowed = "an integer of at least 1"
            self._max_total_elements = check_integer(
                "max_total_elements", max_total_elements, 1, 2**63 - 1, allowed
            )

    def process_dxo(self, dxo: DXO, shareable: object, fl_ctx: object) -> DXO | None:
        """Return a DXO with arrays in place of frames; None, for no change, if it has no frames.

        Raises
        ------
        FormatError
            If a frame is damaged or has another name, if a number or an array, with or without a
            frame, contains NaN or Inf, or if they exceed `max_norm` or `max_total_elements`.
        """
        meta = dict(dxo.meta or {})
        names = meta.pop(_NAMES, None)
        if not isinstance(names, (list, tuple, type(None))):
            raise Corrupt(f"{_NAMES!r} is not a list of names")
        data, squares, elements = dict(dxo.data), 0.0, 0
        most = math.inf if self._max_total_elements is None else self._max_total_elements
        for name in names or ():
            frame = data.get(name) if isinstance(name, str) else None
            if not isinstance(frame, bytes):
                raise Corrupt(f"{name!r} is not a frame")
            parsed = Frame.from_bytes(frame, limits=self._limits)
            if parsed.name != name:
                raise Corrupt(f"{name!r} has a frame of {parsed.name!r}")
            elements += parsed.size
            if elements > most:
                raise LimitExceeded(f"the arrays have more than max_total_elements={most}")
            data[name] = parsed.decode()
        for name, values in data.items():
            # Workflows add a number to all elements of an array.
            if isinstance(values, (np.ndarray, np.generic, float, complex)):
                array = np.asarray(values)
                if has_nonfinite(array):
                    raise Corrupt(f"{name!r} contains NaN or Inf")
                squares += _squares(array)
        if not math.sqrt(squares) <= (self._max_norm or math.inf):
            raise Corrupt(f"the arrays have a norm of {math.sqrt(squares):.3g}")
        return None if names is None else DXO(dxo.data_kind, data, meta)


def _squares(values: np.ndarray) -> float:
    """Return the squared norm of an array of floats or complex numbers; 0 for other dtypes."""
    dtype = values.dtype
    # NumPy's kind of bfloat16 is that of raw bytes.
    if dtype.kind not in "fc" and dtype.name not in (*FLOATS, *FLOATS8):
        return 0.0
    with np.errstate(over="ignore"):
        magnitudes = np.abs(values) if dtype.kind == "c" else values
        return float(np.square(magnitudes.astype(np.float64)).sum())
