"""The codecs: a module or a package for each, imported when the codec is first used.

``gcodec.codecs`` is this package and can also be called: ``gcodec.codecs()`` returns the
registered names and classes, without ``patch``, which needs a base. The package also has the
classes and modules as attributes.

Examples
--------
>>> import gcodec
>>> from gcodec.codecs import Sign
>>> isinstance(gcodec.parse("sign"), Sign)
True
>>> list(gcodec.codecs())[:4]
['raw', 'qsgd', 'mxnet-2bit', 'mxnet-1bit']
>>> gcodec.codecs()["sign"](scale="l2")
Sign(scale='l2')
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gcodec.codec import Codec, CodecLike, Provided, provide, registered, with_id
from gcodec.codec.registry import PRIVATE_IDS, peers
from gcodec.errors import ParameterError, Unsupported
from gcodec.runtime.arithmetic import exact
from gcodec.wire.params import parse_spec

if TYPE_CHECKING:
    from gcodec.codecs.blockwise.codec import Blockwise as Blockwise
    from gcodec.codecs.dct8.codec import DCT8 as DCT8
    from gcodec.codecs.ecsq.codec import ECSQ as ECSQ
    from gcodec.codecs.lossless.codec import Lossless as Lossless
    from gcodec.codecs.lowrank.codec import LowRank as LowRank
    from gcodec.codecs.microscale.codec import Microscale as Microscale
    from gcodec.codecs.minifloat.codec import MiniFloatCodec as MiniFloatCodec
    from gcodec.codecs.minmax import MinMax as MinMax
    from gcodec.codecs.mxnet.one_bit import MXNet1Bit as MXNet1Bit
    from gcodec.codecs.mxnet.two_bit import MXNet2Bit as MXNet2Bit
    from gcodec.codecs.patch.codec import Patch as Patch
    from gcodec.codecs.powersgd.codec import PowerSGD as PowerSGD
    from gcodec.codecs.qsgd.codec import QSGD as QSGD
    from gcodec.codecs.randomk import RandomK as RandomK
    from gcodec.codecs.raw import Raw as Raw
    from gcodec.codecs.sign import Sign as Sign
    from gcodec.codecs.sparseloco import SparseLoCo as SparseLoCo
    from gcodec.codecs.terngrad import TernGrad as TernGrad
    from gcodec.codecs.topk import TopK as TopK

_CODECS = (
    (1, "raw", "raw"),
    (2, "qsgd", "qsgd"),
    (3, "mxnet-2bit", "mxnet"),
    (4, "mxnet-1bit", "mxnet"),
    (5, "terngrad", "terngrad"),
    (6, "minmax", "minmax"),
    (7, "sign", "sign"),
    (8, "minifloat", "minifloat"),
    (9, "topk", "topk"),
    (10, "randomk", "randomk"),
    (11, "dct8", "dct8"),
    (12, "powersgd", "powersgd"),
    (13, "ecsq", "ecsq"),
    (14, "lowrank", "lowrank"),
    (15, "lossless", "lossless"),
    (17, "microscale", "microscale"),
    (18, "blockwise", "blockwise"),
    (19, "sparseloco", "sparseloco"),
)
provide(Provided(id, name, f"{__name__}.{module}") for id, name, module in _CODECS)
provide([Provided(16, "patch", f"{__name__}.patch", needs_base=True)])
_MODULES = {module for _, _, module in _CODECS} | {"patch"}


@exact
def parse(spec: CodecLike) -> Codec:
    """Make a codec from its spec.

    Parameters
    ----------
    spec : str, mapping or Codec
        ``"name:key=value,key=value"`` with keys in any order, a mapping such as
        ``{"name": "mxnet-2bit", "threshold": 0.25}``, or a codec, which is returned unchanged.

    Returns
    -------
    Codec

    Raises
    ------
    ParameterError
        If the name, a key or a value is unknown.

    Examples
    --------
    >>> import gcodec
    >>> gcodec.parse("mxnet-2bit:server=yes,threshold=0.25")
    MXNet2Bit(threshold=0.25, server='yes')
    >>> str(gcodec.parse({"name": "mxnet-2bit", "threshold": 0.5}))
    'mxnet-2bit'
    """
    try:
        return parse_spec("codec", spec, Codec, registered(with_base=True), peers)
    except ParameterError as error:
        if isinstance(spec, str) and spec.partition(":")[0] == "auto":
            advice = "gcodec.choose picks one for a tensor, and gcodec encode for each"
        elif isinstance(spec, Mapping) and "name" not in spec:
            advice = "gcodec.Policy takes a mapping of globs to specs"
        else:
            raise
        raise ParameterError(f"{error}; {advice}") from None


def parse_encoder(spec: CodecLike) -> Codec:
    """Make a codec that encodes a tensor by itself; see `parse`.

    Raises
    ------
    ParameterError
        If the spec is invalid; if the codec needs a base, as ``patch`` does; or if it lacks a
        parameter, as ``lowrank:rank=3`` lacks a step.
    """
    codec = parse(spec)
    codec._check_encodes()
    return codec


def by_id(number: int) -> type[Codec]:
    """Return the codec class that frames call `number`, or raise `Unsupported`."""
    cls = with_id(number)
    if cls is not None:
        return cls
    if number in PRIVATE_IDS:
        raise Unsupported(f"codec id {number} is private: import the module that registers it")
    raise Unsupported(f"codec id {number} is not known to this release")


def __getattr__(name: str) -> Any:
    """Return the class or the module of a codec by its own name, and import the module first."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name[:1].isupper():
        for cls in registered(with_base=True).values():
            if cls.__name__ == name:
                return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    classes = (cls.__name__ for cls in registered(with_base=True).values())
    return sorted({*globals(), *_MODULES, *classes})


class _Callable(types.ModuleType):
    def __call__(self) -> dict[str, type[Codec]]:
        """Return the codec classes that encode a tensor by itself, by name, in order of ids."""
        return dict(registered())


sys.modules[__name__].__class__ = _Callable
