"""The registry: which class a name in a spec and an id in a frame stand for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

from gcodec.codec import Codec
from gcodec.errors import ParameterError

_C = TypeVar("_C", bound="type[Codec]")

_registry: dict[str, type[Codec]] = {}  # in the order of their ids


def register(*, id: int, name: str) -> Callable[[_C], _C]:
    """Make a class a codec: a frozen dataclass, known by `name` in specs and `id` in frames.

    Parameters
    ----------
    id : int
        On the wire, never reused; 192 to 255 are for codecs of one's own.
    name : str
        In lower case.

    Raises
    ------
    ParameterError
        If the id or the name is taken.
    """

    def decorate(cls: _C) -> _C:
        global _registry
        if not isinstance(id, int) or not 1 <= id <= 255:
            raise ParameterError.of("id", id, "from 1 to 255")
        for other in _registry.values():
            same = (other.__module__, other.__qualname__) == (cls.__module__, cls.__qualname__)
            if (other.id == id or other.name == name) and not same:
                raise ParameterError.of("id or name", (id, name), f"free; {other.name} has it")
        cls.id, cls.name = id, name
        every = _registry | {name: dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)}
        _registry = dict(sorted(every.items(), key=lambda item: item[1].id))
        with_id.cache_clear()
        return cls

    return decorate


def registered() -> dict[str, type[Codec]]:
    """Return the codecs known so far, by name, in the order of their ids."""
    return dict(_registry)


@functools.cache
def with_id(id: int) -> type[Codec] | None:
    """Return the codec that frames call `id`, if it is known so far."""
    return next((cls for cls in _registry.values() if cls.id == id), None)
