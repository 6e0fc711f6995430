"""Hybrid compression: small tensors quantised, large ones sparsified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gcodec.policy import Policy
from gcodec.wire.kinds import check_integer


def hybrid(
    threshold_bytes: int = 1 << 20,
    *,
    small: Any = "minmax:bits=4,bucket=512",
    large: Any = "topk:ratio=0.01,value=bfloat16",
    exclude: str | Sequence[str] = (),
) -> Policy:
    """Return the policy that takes one codec for small tensors, and another for large ones.

    Parameters
    ----------
    threshold_bytes : int
        Size, in the tensor's own dtype, from which on a tensor is large.
    small, large : str, mapping or Codec
        See `gcodec.parse`.
    exclude : str or sequence of str
        Glob or globs of the names of tensors that are sent as they are.

    Returns
    -------
    Policy
        For `gcodec.Feedback`, which both kinds need; its `to_json` is for the command.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> policy = hybrid(4096, exclude=["*.bias"])
    >>> policy.codec("fc.weight", (1023,), "float32")
    MinMax(bits=4, bucket=512)
    >>> policy.codec("fc.weight", (1024,), "float32")
    TopK(value='bfloat16')
    >>> policy.codec("fc.bias", (10,), "float32")
    Raw()
    """
    threshold = check_integer(
        "threshold_bytes", threshold_bytes, 1, 2**62, "an integer from 1 to 2**62"
    )
    names = exclude if isinstance(exclude, str) else list(exclude)
    kept = [{"name": names, "codec": "raw"}] if names else []
    return Policy([*kept, {"max_bytes": threshold - 1, "codec": small}, {"codec": large}])
