"""Valid frames that gcodec's encoder never writes, with their decoded values.

The specification leaves many choices to a writer: tables of code lengths and frequencies, Rice
parameters, the elements of a sparse message, scales, any bit pattern of a float, blocks of seek
tables; and a reader must accept defaults that are written out. The oracles of ``tests/reference``
write the messages with such choices drawn at random; the same seed gives the same frames.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reference import frame as frames
from reference import seek

from fuzz.bodies import WRITERS
from gcodec.codecs import by_id

SHAPES = ((), (0,), (1,), (2,), (37,), (5, 7), (64,), (3, 1, 50), (300,), (40, 37), (1,) * 32)
SHAPES += ((4, 2, 3, 3), (3, 2, 5))


class Valid(NamedTuple):
    """A valid frame, and the name of its codec."""

    codec: str
    data: bytes


def frame(rng: random.Random, codec: str) -> Valid:
    """Write a frame of a codec."""
    shape: tuple[int, ...] = rng.choice(SHAPES)
    body = WRITERS[codec](rng, shape)
    params = body.params
    if rng.random() < 0.5:
        params = _written_out(body.id, params)
    name = rng.choice((None, None, "", "layer.0/größe", "\0\x1b[31m", "w" * 200))
    table = None if body.table is None else seek.section(body.table)
    numbers = body.payload, body.nbits, name
    dtype = rng.choice((1, 1, 1, 2, 3, 4)) if body.dtype is None else body.dtype
    data = frames.build(body.id, dtype, shape, params, body.scalars, *numbers, seek=table)
    return Valid(codec, data)


def valid_frames(seed: int, count: int, codecs: Iterable[str] = tuple(WRITERS)) -> Iterator[Valid]:
    """Yield `count` frames of each codec."""
    for codec in codecs:
        rng = random.Random(f"{codec} {seed}")
        for _ in range(count):
            yield frame(rng, codec)


def _written_out(number: int, params: bytes) -> bytes:
    """Write out default values after the last parameter."""
    cls = by_id(number)
    count = len(list(cls.parameters_in(memoryview(params))))
    for declared in [d for d in cls.declared() if d.in_frame and not d.in_message][count:]:
        if declared.default in declared.kind.unsent:
            break
        params += declared.kind.write(declared.default)
    return params
