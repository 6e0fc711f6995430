"""Encode torch tensors to frames, and decode frames to torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from gcodec import api
from gcodec.arrays.frameworks import TORCH
from gcodec.arrays.nonfinite import NonFinite
from gcodec.codec import CodecLike
from gcodec.limits import Limits

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """Keep `torch.compile` from tracing a function, without loading its compiler otherwise."""
    disabled = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return call


@untraced
def encode(
    tensor: torch.Tensor,
    codec: CodecLike,
    *,
    seed: int = 0,
    name: str | None = None,
    nonfinite: NonFinite = "raise",
    key: bytes | None = None,
) -> bytes:
    """Compress one tensor, on any device, to a frame.

    This function equals `gcodec.encode`, but copies the tensor to the host first, and torch does
    not trace it inside of functions that `torch.compile` has received.

    Parameters
    ----------
    tensor : torch.Tensor
        Tensor of any dtype that `gcodec.encode` takes.
    codec : str, mapping or Codec
        Codec and its parameters; see `gcodec.parse`.
    seed, name, nonfinite, key
        See `gcodec.encode`.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError, TypeError
        See `gcodec.encode`.

    Examples
    --------
    >>> import torch, gcodec.torch
    >>> frame = gcodec.torch.encode(torch.tensor([0.7, -0.9]), "mxnet-2bit")
    >>> gcodec.torch.decode(frame)
    tensor([ 0.5000, -0.5000])
    """
    if isinstance(tensor, torch.Tensor) and _is_on_device(tensor):
        tensor = tensor.detach().cpu()
    return api.encode(tensor, codec, seed=seed, name=name, nonfinite=nonfinite, key=key)


@untraced
def decode(
    frame: bytes | bytearray | memoryview,
    *,
    like: torch.Tensor | None = None,
    device: torch.device | str | int | None = None,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> torch.Tensor:
    """Decode a frame on the host to a tensor on any device; torch does not trace the function.

    Parameters
    ----------
    frame : bytes-like
        One frame.
    like : torch.Tensor, optional
        Tensor whose device and dtype the result takes. Its shape must be the frame's.
    device : device, optional
        Device of the result. Default: the device of `like`, else the host.
    limits, key
        See `gcodec.decode`.

    Returns
    -------
    torch.Tensor
        Decoded tensor in the frame's shape, with the dtype of `like`, else of the frame.

    Raises
    ------
    FormatError, ParameterError, TypeError
        See `gcodec.decode`.

    Examples
    --------
    >>> import torch, gcodec.torch
    >>> frame = gcodec.torch.encode(torch.ones(2, dtype=torch.bfloat16), "sign")
    >>> gcodec.torch.decode(frame, device="cpu")
    tensor([1., 1.], dtype=torch.bfloat16)
    """
    if like is None:
        array = api.decode(frame, limits=limits, key=key)
        template = torch.empty(0, device="cpu" if device is None else device)
        tensor: torch.Tensor = TORCH.make(array, template)
    elif not isinstance(like, torch.Tensor):
        raise TypeError(f"like is of type {type(like).__name__}: must be a torch.Tensor")
    else:
        # A tensor on the host with that shape and dtype, which takes no memory.
        template = torch.empty((), dtype=like.dtype, device="cpu").expand(like.shape)
        tensor = api.decode(frame, like=template, limits=limits, key=key)
        tensor = tensor.to(like.device if device is None else device)
    return tensor


def _is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether a dense tensor has values outside of the host's memory."""
    return tensor.layout is torch.strided and tensor.device.type not in ("cpu", "meta")
