"""Start the ranks of an example: processes of this machine that communicate through gloo."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def start(worker: Callable[..., None], size: int, *arguments: Any) -> None:
    """Call ``worker(*arguments)`` in `size` ranks; under ``torchrun``, in this process only."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        worker(*arguments)
        _leave()
        return
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        torch.multiprocessing.spawn(_run, (size, store, worker, arguments), size)


def _run(
    rank: int, size: int, store: str, worker: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    worker(*arguments)
    _leave()


def _leave() -> None:
    # A thread of gloo may still wait for Python, to release the tensor of the last collective. If
    # Python ended first, the process would abort (seen with PyTorch 2.13).
    dist.barrier()
    dist.destroy_process_group()
