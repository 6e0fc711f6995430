"""Codecs in many settings, selected by two bytes."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import gcodec
from gcodec.codec import Codec
from gcodec.wire.params import Param

NUMBERS = (0.5, 1e-3, 7.25, 0, 1, 2, 3, 5, 32)
MOST_SETTINGS = 200  # most combinations of parameters of one codec


@functools.cache
def settings(cls: type[Codec]) -> tuple[Codec, ...]:
    """Return codecs with each word and a few numbers per parameter, and combinations."""
    values = [(d, (d.default, *_allowed(d))) for d in cls.declared()]
    rows = [{d.name: value} for d, allowed in values for value in allowed]
    rng = random.Random(cls.name)
    rows += [{d.name: rng.choice(allowed) for d, allowed in values} for _ in range(MOST_SETTINGS)]
    codecs: dict[str, Codec] = {}
    for row in rows:
        with contextlib.suppress(gcodec.ParameterError):
            codec = cls.from_mapping(row)
            codecs.setdefault(str(codec), codec)
    return tuple(codecs.values())


def _allowed(declared: Param) -> list[Any]:
    """Return the words of a parameter, and the sample numbers that it accepts."""
    allowed = []
    for value in (*getattr(declared.kind, "words", ()), *NUMBERS):
        with contextlib.suppress(gcodec.ParameterError):
            declared.kind.check(declared.name, value)
            allowed.append(value)
    return allowed


def codec_of(number: int, setting: int) -> Codec:
    """Select a codec by two bytes: its number (or any other number), and a setting."""
    classes = list(gcodec.codecs().values())
    own = [cls for cls in classes if cls.id == number]
    codecs = settings(own[0] if own else classes[number % len(classes)])
    return codecs[setting % len(codecs)]
