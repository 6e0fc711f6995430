"""Test golden vectors: bytes that every later release must write and read.

The expected bytes come from the oracles in tests/reference, not from gcodec; these tests only read
the files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import vector

import gcodec

FOLDER = Path(__file__).parent / "golden" / "v1"
PATHS = sorted(FOLDER.glob("*.txt"))
PATCHES = sorted((FOLDER / "patch").glob("*.txt"))
OWN_IDS = range(192, 256)  # ids of user-defined codecs


@pytest.mark.parametrize("path", PATHS + PATCHES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    fields = vector.read(path)
    spec = fields.pop("spec")
    vector.check(spec, fields)


def test_every_codec_has_vectors() -> None:
    specs = [vector.read(path)["spec"] for path in PATHS]
    covered = {spec.partition(":")[0] for spec in specs}
    registered = {name for name, cls in gcodec.codecs().items() if cls.id not in OWN_IDS}
    assert covered == registered
    assert {vector.read(path)["spec"] for path in PATCHES} == {"patch"}


@pytest.mark.parametrize("key", ["dtype", "name", "key", "nonfinite"])
def test_differences_are_reported(key: str) -> None:
    values = {vector.read(path).get(key) for path in PATHS}
    assert len(values) > 1
    assert key != "dtype" or values == set(vector.DTYPES)


def test_wrong_vectors_fail() -> None:
    fields = vector.read(FOLDER / "mxnet-2bit_ordinary.txt")
    spec = fields.pop("spec")
    with pytest.raises(AssertionError):
        vector.check(spec, {**fields, "decoded": fields["decoded"].replace("0x", "-0x", 1)})
    with pytest.raises(AssertionError):
        vector.check(spec, {**fields, "payload": fields["payload"].replace("c", "b", 1)})
    with pytest.raises(AssertionError, match="unknown"):
        vector.check(spec, {**fields, "color": "blue"})
