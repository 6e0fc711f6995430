"""Hybrid compression: quantize small tensors and sparsify large ones."""

from __future__ import annotations

from collections.abc import Sequence

from gcodec.codec import CodecLike
from gcodec.policy import Policy, checked_globs
from gcodec.wire.kinds import check_integer


def hybrid(
    threshold_bytes: int = 1 << 20,
    *,
    small: CodecLike = "minmax:bits=4,bucket=512",
    large: CodecLike = "topk:ratio=0.01,value=bfloat16",
    exclude: str | Sequence[str] = (),
) -> Policy:
    """Return the policy that picks one codec for small tensors and another for large ones.

    Parameters
    ----------
    threshold_bytes : int
        Size in bytes, in the tensor's own dtype, from which a tensor counts as large.
    small, large : str, mapping or Codec
        See `gcodec.parse`.
    exclude : str or sequence of str
        Glob or globs; tensors whose names match are sent uncompressed.

    Returns
    -------
    Policy
        A policy for `gcodec.Feedback`, which both codecs need. ``policy.to_json()`` writes the
        policy for the command line.

    Raises
    ------
    ParameterError
        If an argument is out of range.

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
    globs = checked_globs(exclude)
    excluded = [{"name": globs, "codec": "raw"}] if globs else []
    return Policy([*excluded, {"max_bytes": threshold - 1, "codec": small}, {"codec": large}])
