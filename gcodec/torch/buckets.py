"""Buckets of DistributedDataParallel: their gradients as views, and the device that codes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gcodec.arrays.source import inspect
from gcodec.codec import Codec
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.runtime.device import cuda_device, has_cupy
from gcodec.torch.messages import Part


class Bucket(NamedTuple):
    """A bucket of gradients that awaits its mean over all ranks.

    Attributes
    ----------
    flat : Tensor
        All values of the bucket.
    gradients : sequence of Tensor
        Views of `flat`.
    names : sequence of str
        Names of the parameters.
    is_first, is_last : bool
        Whether the bucket is the first or the last one of its step.
    all_reduce : Future or None
        Future of an all-reduce that is under way, for a bucket that is not compressed.
    ready : Event or None
        CUDA event after which the bucket contains its values.
    """

    flat: torch.Tensor
    gradients: Sequence[torch.Tensor]
    names: Sequence[str]
    is_first: bool
    is_last: bool
    all_reduce: torch.futures.Future[Any] | None
    ready: torch.cuda.Event | None

    def parts(
        self,
        codecs: Sequence[Codec | None],
        wide: torch.Tensor,
        *,
        on_device: bool,
        contiguous: bool,
    ) -> tuple[list[Part], list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return the gradients as parts of a message.

        Parameters
        ----------
        codecs : sequence of Codec or None
            Codec of each gradient.
        wide : Tensor
            Values of the bucket as float32.
        on_device : bool
            Whether the parts contain arrays on the device of `wide`, and not of NumPy.
        contiguous : bool
            Whether the values of each part must be contiguous.

        Returns
        -------
        parts : list of Part
            Gradients, which are views of `wide` where possible.
        copies : list of (Tensor, Tensor)
            Each view of `wide` that had to be copied to be contiguous, and the copy in its part.
        """
        parts, copies = [], list[tuple[torch.Tensor, torch.Tensor]]()
        offset = self.flat.storage_offset() - wide.storage_offset()
        for gradient, name, codec in zip(self.gradients, self.names, codecs, strict=True):
            start = gradient.storage_offset() - offset
            view = wide.as_strided(gradient.shape, gradient.stride(), start)
            values = view.contiguous() if contiguous else view
            if values is not view:
                copies.append((view, values))
            resident = inspect(values, name).resident if on_device else None
            parts.append(Part(name, values.numpy() if resident is None else resident, codec))
        return parts, copies


def gradients_in(
    bucket: dist.GradBucket, parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the gradients in a bucket as views, each with the strides that DDP gives it.

    DDP lays out a gradient as its parameter if that fills its memory, as in channels-last order.
    `GradBucket.gradients` takes the same values as contiguous, which mixes up the elements.
    """
    views = []
    for gradient, parameter in zip(bucket.gradients(), parameters, strict=True):
        strides, view = parameter.stride(), gradient
        if gradient.stride() != strides:
            # `empty_like` keeps only strides without gaps and overlaps.
            dense = torch.empty_like(parameter, device="meta").stride()
            view = gradient.as_strided(gradient.shape, strides) if dense == strides else gradient
        views.append(view)
    return views


def is_finite(values: torch.Tensor) -> bool:
    """Return whether a tensor, possibly a sparse one, contains neither NaN nor Inf."""
    if values.layout is not torch.strided:
        values = values.coalesce().values()
    if values.dtype == torch.float32 and not values.is_cuda and values.is_contiguous():
        return all_finite(values.numpy().reshape(-1))
    return bool(torch.isfinite(values).all())


def has_kernels_for(flat: torch.Tensor) -> bool:
    """Return whether kernels can run on the device of a bucket; if not, they run on the host."""
    return bool(flat.is_cuda) and has_cupy()


def cupy_on(stream: torch.cuda.Stream, flat: torch.Tensor) -> AbstractContextManager[object]:
    """Let CuPy use a stream: its own one may be that of the backward pass."""
    if not has_kernels_for(flat):
        return nullcontext()
    return cuda_device(flat.device.index).on_stream(stream.cuda_stream)
