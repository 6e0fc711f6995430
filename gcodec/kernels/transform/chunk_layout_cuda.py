"""Launcher of chunk_layout.cu; see `gcodec.kernels.transform.chunk_layout`."""

from __future__ import annotations

from gcodec.kernels.transform.chunk_layout import Layout
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts


def gather(x: Array, layout: Layout, first: int, out: Array) -> None:
    """Write chunks to an array."""
    columns, height, width, _ = layout
    across, rows = -(-columns // width), -(-x.size // columns)
    chunks = out.size // (height * width)
    arguments = x, x.size, *layout, across, rows, first, out, chunks
    launch_parts(device_with(x), "chunk_layout", "gather_chunks", chunks, 1, *arguments)
