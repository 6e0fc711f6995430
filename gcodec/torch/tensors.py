"""Tensors to frames and back."""

from __future__ import annotations

from typing import Any

import torch

from gcodec import api
from gcodec.arrays.frameworks import TORCH
from gcodec.arrays.nonfinite import NonFinite
from gcodec.limits import Limits


def encode(
    tensor: torch.Tensor,
    codec: Any,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    key: bytes | None = None,
) -> bytes:
    """Compress one tensor, of any device, to a frame.

    As `gcodec.encode`, but a tensor that is not on the host is copied there.

    Parameters
    ----------
    tensor : torch.Tensor
        float32, float16, bfloat16 or float64.
    codec : str, mapping or Codec
    seed, name, nonfinite, key
        See `gcodec.encode`.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError, TypeError
        See `gcodec.encode`.
    """
    host = tensor.detach().cpu() if tensor.layout is torch.strided else tensor
    frame: bytes = api.encode(host, codec, seed=seed, name=name, nonfinite=nonfinite, key=key)
    return frame


def decode(
    frame: bytes | bytearray | memoryview,
    *,
    like: torch.Tensor | None = None,
    device: Any = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> torch.Tensor:
    """Decode a frame on the host, to a tensor of any device.

    Parameters
    ----------
    frame : bytes-like
    like : torch.Tensor, optional
        The result takes its device and dtype; its shape must be the frame's.
    device : device, optional
        Where there is no `like`: of the result. Default: the host.
    limits, key
        See `gcodec.decode`.

    Returns
    -------
    torch.Tensor
        Of the frame's shape; of its dtype where `like` asks for no other.

    Raises
    ------
    FormatError, ParameterError
        See `gcodec.decode`.
    """
    if like is None:
        array = api.decode(frame, limits=limits, key=key)
        tensor = TORCH.make(array, torch.empty(0, device=device or "cpu"))
    else:
        # On the host, as `encode`; of that shape and dtype, without memory for it.
        same = torch.empty((), dtype=like.dtype).expand(like.shape)
        tensor = api.decode(frame, like=same, limits=limits, key=key)
        tensor = tensor.to(like.device if device is None else device)
    result: torch.Tensor = tensor
    return result
