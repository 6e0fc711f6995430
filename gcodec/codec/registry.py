"""The registry of codecs: their ids, their names, and the modules that define them."""

from __future__ import annotations

import dataclasses
import importlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gcodec.codec.base import Codec
from gcodec.errors import ParameterError

if TYPE_CHECKING:  # typing has it from Python 3.11 on
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: object) -> Callable[[_C], _C]:
        """Do what the decorator of `typing` does: nothing that shows while a program runs."""
        return lambda decorated: decorated


_C = TypeVar("_C", bound="type[Codec]")


class Provided(NamedTuple):
    """A codec that has an id, and whose module is imported when the codec is first used.

    Attributes
    ----------
    id : int
    name : str
    module : str
        Name of the module, or package, that registers the class.
    needs_base : bool
        See `Codec`.
    """

    id: int
    name: str
    module: str
    needs_base: bool = False


PRIVATE_IDS = range(192, 256)
"""Ids of codecs that are not gcodec's own."""

_lock = threading.Lock()  # of the registry: threads may import the modules of several codecs
_registry: dict[str, type[Codec] | Provided] = {}  # in the order of the ids
_names: dict[int, str] = {}  # of all codecs that have ever been registered or provided, by id


class _Registered(Mapping[str, type[Codec]]):
    """View of the codec classes by name, in the order of their ids."""

    def __init__(self, with_base: bool) -> None:
        self._with_base = with_base

    def __getitem__(self, name: str) -> type[Codec]:
        if _registry[name].needs_base and not self._with_base:
            raise KeyError(name)
        return _imported(name)

    def __contains__(self, name: object) -> bool:
        return name in _registry and (self._with_base or not _registry[str(name)].needs_base)

    def __iter__(self) -> Iterator[str]:
        return (name for name in list(_registry) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_WITH_BASE, _WITHOUT_BASE = _Registered(with_base=True), _Registered(with_base=False)


def _imported(name: str) -> type[Codec]:
    codec = _registry[name]
    if isinstance(codec, Provided):
        importlib.import_module(codec.module)
        codec = _registry[name]
        assert not isinstance(codec, Provided)
    return codec


def provide(provided: Iterable[Provided]) -> None:
    """Announce codecs whose modules are imported when they are first used."""
    _put({each.name: each for each in provided}, replaces=False)


def _put(codecs: Mapping[str, type[Codec] | Provided], replaces: bool) -> None:
    """Add codecs to the registry, which keeps those that it has unless they are replaced."""
    global _registry
    with _lock:
        merged = {**_registry, **codecs} if replaces else {**codecs, **_registry}
        _registry = dict(sorted(merged.items(), key=lambda item: item[1].id))
        _names.update((codec.id, name) for name, codec in merged.items())


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def register(*, id: int, name: str) -> Callable[[_C], _C]:
    """Register a class as a codec, and make it a frozen dataclass with keyword arguments.

    Parameters
    ----------
    id : int
        Number in frames, from 192 to 255; the other numbers are those of public codecs.
    name : str
        Name in specs: lower-case letters, digits, ``-`` and ``_``; not ``auto``.

    Returns
    -------
    callable
        Class decorator.

    Raises
    ------
    ParameterError
        If the id or the name is taken, the id is not from 192 to 255, or the name is invalid.
    TypeError
        If the class does not inherit from `Codec`, or declares a parameter or its symbols in a way
        that gcodec cannot use.

    Examples
    --------
    >>> import gcodec
    >>> @gcodec.register(id=1, name="mine")
    ... class Mine(gcodec.Codec):
    ...     pass
    Traceback (most recent call last):
        ...
    gcodec.errors.ParameterError: id or name=(1, 'mine'): must be free; raw has it
    """

    def decorate(cls: _C) -> _C:
        decorated: object = cls
        if not (isinstance(decorated, type) and issubclass(decorated, Codec)):
            title = getattr(decorated, "__name__", type(decorated).__name__)
            raise TypeError(f"{title} is no subclass of gcodec.Codec: must be a codec")
        if not (isinstance(name, str) and re.fullmatch("(?!auto$)[a-z0-9][a-z0-9_-]*", name)):
            raise ParameterError.of("name", name, "lower-case letters, digits, - and _, not auto")
        importlib.import_module("gcodec.codecs")  # which provides those of gcodec
        for other in _registry.values():
            if (other.id == id or other.name == name) and not _is_same(other, cls):
                raise ParameterError.of("id or name", (id, name), f"free; {other.name} has it")
        if not (isinstance(id, int) and id in PRIVATE_IDS) and _names.get(id) != name:
            raise ParameterError.of("id", id, "an integer from 192 to 255")
        cls.id, cls.name = id, name
        codec = dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)(cls)
        _check_declarations(codec)
        _put({name: codec}, replaces=True)
        return cls

    return decorate


def _is_same(other: type[Codec] | Provided, cls: type[Codec]) -> bool:
    """Return whether a class is the registered one, perhaps from a second import."""
    if isinstance(other, Provided):
        return cls.__module__.startswith(other.module)
    return (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)


def _check_declarations(cls: type[Codec]) -> None:
    """Raise TypeError for a class with declarations that fail only where they are used."""
    for field in dataclasses.fields(cls):
        title = f"{cls.__name__}.{field.name}"
        if hasattr(Codec, field.name) or field.name in Codec.__annotations__:
            raise TypeError(f"{title}: must have another name, which gcodec.Codec does not use")
        if "param" not in field.metadata:
            raise TypeError(f"{title}: must be declared by gcodec.codec.param")
    symbols_type: object = cls.symbols_type
    if not isinstance(symbols_type, type):
        kind = type(symbols_type).__name__
        raise TypeError(f"{cls.__name__}.symbols_type is of type {kind}: must be a class")
    for name, dtypes in cls.symbols_dtypes.items():
        title = f"{cls.__name__}.symbols_dtypes[{name!r}]"
        if name not in getattr(symbols_type, "_fields", ()):
            raise TypeError(f"{title}: must be for a field of {symbols_type.__name__}")
        if isinstance(dtypes, str):
            raise TypeError(f"{title}={dtypes!r}: must be a sequence of dtypes")


def registered(*, with_base: bool = False) -> Mapping[str, type[Codec]]:
    """Return the registered codec classes by name, in the order of their ids.

    Parameters
    ----------
    with_base : bool
        Whether to include the codecs that need another tensor to encode and decode one.
    """
    return _WITH_BASE if with_base else _WITHOUT_BASE


def peers() -> dict[str, str]:
    """Return specs of registered codecs by their names in other systems; see `Codec.peers`."""
    classes = registered(with_base=True).values()
    return {name: spec for cls in classes for name, spec in cls.peers.items()}


def with_id(id: int) -> type[Codec] | None:
    """Return the codec class with an id, or None if no such codec is registered."""
    name = _names.get(id)
    return _imported(name) if name in _registry else None
