"""gcodec: exact, documented bit formats for compressed gradients.

>>> import gcodec, numpy as np
>>> frame = gcodec.encode(np.array([0.3, -0.9], np.float32), "mxnet-2bit:threshold=0.25")
>>> gcodec.decode(frame)
array([ 0.25, -0.25], dtype=float32)
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gcodec.errors import (
    Corrupt,
    FormatError,
    GcodecError,
    LimitExceeded,
    ParameterError,
    Truncated,
    Unsafe,
    Unsupported,
)

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("gcodec runs on little-endian hosts only")

if TYPE_CHECKING:
    from gcodec import advisor as advisor
    from gcodec import entropy as entropy
    from gcodec import interop as interop
    from gcodec import training as training
    from gcodec.advisor.choose import choose
    from gcodec.analysis.inspection import inspect
    from gcodec.api import (
        decode,
        decode_add,
        decode_many,
        decode_range,
        decode_sparse,
        decode_sum,
        encode,
        encode_many,
        iter_frames,
        warmup,
    )
    from gcodec.api.files import TensorFile, load_file, open, save_file
    from gcodec.codec import Codec, register
    from gcodec.codecs import parse
    from gcodec.feedback import Feedback
    from gcodec.frame import Frame
    from gcodec.limits import Limits
    from gcodec.patch.store import PatchStore
    from gcodec.patch.tensors import apply_patch, encode_patch
    from gcodec.payload import Payload
    from gcodec.policy import Policy

    def codecs() -> dict[str, type[Codec]]:
        """Return the codec classes; see `gcodec.codecs`, a package that can be called."""
        ...


__version__ = "0.1.0"

__all__ = [
    "Codec",
    "Corrupt",
    "Feedback",
    "FormatError",
    "Frame",
    "GcodecError",
    "LimitExceeded",
    "Limits",
    "ParameterError",
    "PatchStore",
    "Payload",
    "Policy",
    "TensorFile",
    "Truncated",
    "Unsafe",
    "Unsupported",
    "advisor",
    "apply_patch",
    "choose",
    "codecs",
    "decode",
    "decode_add",
    "decode_many",
    "decode_range",
    "decode_sparse",
    "decode_sum",
    "encode",
    "encode_many",
    "encode_patch",
    "entropy",
    "inspect",
    "interop",
    "iter_frames",
    "load_file",
    "open",
    "parse",
    "register",
    "save_file",
    "training",
    "warmup",
]

# Modules of the public names, other than `api`. Each loads on first use, so `import gcodec` stays
# fast.
_PACKAGES = ("advisor", "codecs", "entropy", "interop", "training")
_ADAPTERS = ("flower", "jax", "mpi", "numcodecs", "nvflare", "torch", "zarr")  # need an import
_MODULES = {
    "Codec": "codec",
    "Feedback": "feedback",
    "Frame": "frame",
    "Limits": "limits",
    "PatchStore": "patch.store",
    "Payload": "payload",
    "Policy": "policy",
    "TensorFile": "api.files",
    "apply_patch": "patch.tensors",
    "choose": "advisor.choose",
    "encode_patch": "patch.tensors",
    "inspect": "analysis.inspection",
    "load_file": "api.files",
    "open": "api.files",
    "parse": "codecs",
    "register": "codec",
    "save_file": "api.files",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"gcodec.{name}")
    if name not in __all__:
        hint = f": import gcodec.{name} first" if name in _ADAPTERS else ""
        raise AttributeError(f"module 'gcodec' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"gcodec.{_MODULES.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
