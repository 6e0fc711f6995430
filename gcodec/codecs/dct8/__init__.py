"""The codec `dct8`: the largest coefficients of the discrete cosine transform of chunks.

The messages of Panthalia and DeMo live in `gcodec.interop`, and the transform in `gcodec.kernels`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gcodec.codecs.dct8 import chunks, levels, transform
from gcodec.codecs.dct8.chunks import Chunks
from gcodec.codecs.dct8.codec import DCT8, DCT8Symbols
from gcodec.codecs.dct8.levels import Levels

if TYPE_CHECKING:
    from gcodec.interop.panthalia import decode as from_panthalia
    from gcodec.interop.panthalia import encode as to_panthalia
    from gcodec.interop.panthalia import to_safetensors

__all__ = [
    "DCT8",
    "Chunks",
    "DCT8Symbols",
    "Levels",
    "chunks",
    "from_panthalia",
    "levels",
    "to_panthalia",
    "to_safetensors",
    "transform",
]

# Functions for Panthalia's messages, which lie in a layer above this one.
_PANTHALIA = {
    "to_panthalia": "encode",
    "from_panthalia": "decode",
    "to_safetensors": "to_safetensors",
}


def __getattr__(name: str) -> Any:
    if name not in _PANTHALIA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("gcodec.interop.panthalia"), _PANTHALIA[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *_PANTHALIA})
