"""Frames that every release must decode alike: golden vectors and the corpus of the fuzzer."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import gcodec

ROOT = Path(__file__).parents[1]
VECTORS = ROOT / "tests" / "golden" / "v1"
CORPUS = Path(__file__).parent / "corpus"


class Golden(NamedTuple):
    """A golden frame.

    Attributes
    ----------
    name, codec : str
        Name of the vector and of its codec.
    data : bytes
        The frame.
    key : bytes or None
        Key of its tag.
    """

    name: str
    codec: str
    data: bytes
    key: bytes | None


@functools.cache
def goldens() -> tuple[Golden, ...]:
    """Return the frames of all golden vectors, by name."""
    vectors = []
    for path in sorted(VECTORS.glob("*.txt")):
        fields: dict[str, str] = {}
        for line in path.read_text("utf-8").splitlines():
            key, _, value = line.split("#", 1)[0].strip().partition(" ")
            fields[key] = fields.get(key, "") + value.strip() + " "
        secret = fields["key"].strip().encode() if "key" in fields else None
        data = bytes.fromhex(fields["frame"].replace("|", " "))
        name = fields["spec"].strip().partition(":")[0]
        vectors.append(Golden(path.stem, name, data, secret))
    assert vectors
    return tuple(vectors)


def of_codecs(each: int) -> list[Golden]:
    """Return up to `each` frames of each codec, spread over its vectors."""
    vectors = []
    for codec in gcodec.codecs():
        own = [golden for golden in goldens() if golden.codec == codec]
        vectors += own[:: -(-len(own) // each)]
    return vectors
