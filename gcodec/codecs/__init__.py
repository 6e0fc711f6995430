"""The codecs: one module each, or a package. Importing this package registers all of them.

``gcodec.codecs`` is this package and can also be called: ``gcodec.codecs()`` returns the
registered names and classes, without ``patch``, which needs a base.

Examples
--------
>>> import gcodec
>>> list(gcodec.codecs())[:4]
['raw', 'qsgd', 'mxnet-2bit', 'mxnet-1bit']
>>> gcodec.codecs()["sign"](scale="l2")
Sign(scale='l2')
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from collections.abc import Mapping
from typing import Any

from gcodec.codec import Codec, registered, with_id
from gcodec.errors import Unsupported
from gcodec.wire.params import parse_spec

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def parse(spec: str | Mapping[str, Any] | Codec) -> Codec:
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
    return parse_spec("codec", spec, Codec, registered(with_base=True))


def by_id(number: int) -> type[Codec]:
    """Return the codec class that frames call `number`, or raise `Unsupported`."""
    cls = with_id(number)
    if cls is None:
        raise Unsupported(f"codec id {number} is not known to this release")
    return cls


class _Callable(types.ModuleType):
    def __call__(self) -> dict[str, type[Codec]]:
        """Return the codec classes that encode a tensor by itself, by name, in order of ids."""
        return registered()


sys.modules[__name__].__class__ = _Callable
