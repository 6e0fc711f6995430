"""Messages of other systems, byte for byte: one module for each peer.

Each module has ``encode`` and ``decode``, which convert between arrays and the peer's own format.
If a codec of gcodec stores the same information, the module also has ``to_frame`` and
``from_frame``. Transport, error feedback and the codecs themselves live elsewhere. See
``docs/interop.md``.

Examples
--------
>>> import gcodec, numpy as np
>>> x = np.array([0.7, -0.2, -0.9], np.float32)
>>> message = gcodec.interop.mxnet.encode(x, threshold=0.5)
>>> gcodec.interop.mxnet.decode(message, 3, threshold=0.5)
array([ 0.5,  0. , -0.5], dtype=float32)
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gcodec.interop import bitsandbytes as bitsandbytes
    from gcodec.interop import byteps as byteps
    from gcodec.interop import caffe2 as caffe2
    from gcodec.interop import deepspeed as deepspeed
    from gcodec.interop import demo as demo
    from gcodec.interop import grail as grail
    from gcodec.interop import hivemind as hivemind
    from gcodec.interop import mxnet as mxnet
    from gcodec.interop import nemo_rl as nemo_rl
    from gcodec.interop import panthalia as panthalia
    from gcodec.interop import psyche as psyche
    from gcodec.interop import templar as templar
    from gcodec.interop import torchao as torchao
    from gcodec.interop import torchft as torchft
    from gcodec.interop import trl as trl

__all__ = [
    "bitsandbytes",
    "byteps",
    "caffe2",
    "deepspeed",
    "demo",
    "grail",
    "hivemind",
    "mxnet",
    "nemo_rl",
    "panthalia",
    "psyche",
    "templar",
    "torchao",
    "torchft",
    "trl",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module 'gcodec.interop' has no attribute {name!r}")
    return importlib.import_module(f"gcodec.interop.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
