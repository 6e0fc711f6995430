"""A golden vector: lines ``key   value`` about one tensor, checked in both directions.

``#`` begins a comment; ``|`` and blanks between hexadecimal digits only separate fields. Values of
arrays are decimal numbers, hexadecimal floats (``0x1.8p-3``), ``nan``, ``inf``, or ``bits:`` and
the bit pattern in the array's own dtype (``bits:7fc00001``). A repeated key continues the value.
``seek`` requests a seek table with blocks of 2 to this power. A vector without ``grad`` shows the
message of symbols that an encoder may or may not choose. A vector with ``base`` shows a patch of
this tensor; with ``other``, it is one that gcodec reads but does not write.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference import frame as reference_frame
from reference import halves, integers, patch

import gcodec

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
} | {name: np.dtype(name) for name in integers.CODES}
DTYPE_CODES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
DTYPE_CODES |= integers.CODES | integers.FLOATS8
REQUIRED = {"dtype", "payload", "frame", "decoded"}
OPTIONAL = {"shape", "seed", "name", "key", "nonfinite", "scalars", "residual", "after", "bits"}
OPTIONAL |= {"seek", "grad"}
SEARCHES = {"lowrank"}
"""Codecs whose encoders search for symbols, so that their vectors may lack ``grad``."""


def fields_of(text: str) -> dict[str, str]:
    """Parse the lines of a vector."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            key, _, value = line.partition(" ")
            fields[key] = f"{fields[key]} {value.strip()}" if key in fields else value.strip()
    return fields


def read(path: Path) -> dict[str, str]:
    """Return the fields of a golden vector."""
    return fields_of(path.read_text("utf-8"))


def data(text: str) -> bytes:
    """Return the bytes of hexadecimal digits."""
    return bytes.fromhex(text.replace("|", " "))


def floats(text: str, dtype: str) -> np.ndarray:
    """Return a flat array of the values in `text`."""
    kind = DTYPES[dtype]
    out = np.empty(len(text.split()), kind)
    patterns = out.view(f"u{kind.itemsize}")
    for i, word in enumerate(text.split()):
        if word.startswith("bits:"):
            patterns[i] = int(word.removeprefix("bits:"), 16)
        elif kind.kind in "iub":
            out[i] = int(word)
        elif "0x" in word:
            out[i] = float.fromhex(word)
        else:
            out[i] = float(word)
    return out


def bits(array: np.ndarray) -> list[str]:
    """Return the bit patterns of an array, so that NaN and −0 compare."""
    digits = 2 * array.dtype.itemsize
    unsigned = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return [f"{int(pattern):0{digits}x}" for pattern in unsigned]


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round flat float32 values to `dtype` with the reference."""
    if dtype in halves.NARROW:
        return halves.narrow(values, dtype).view(DTYPES[dtype])
    return values.astype(DTYPES[dtype])


def scalar_of(text: str) -> float | str:
    """Return the value of a scalar: a number or a word."""
    if text.isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def shape_of(fields: dict[str, str]) -> tuple[int, ...]:
    """Return the shape: ``()`` for 0-d; flat by default."""
    text = fields.get("shape")
    if text is None:
        return (len(fields["grad"].split()),)
    return () if text == "()" else tuple(int(size) for size in text.split())


NO_LONGER_ASKED = {"topk:k=0,index=eliasfano", "randomk:k=0,value=sign"}
"""Specs of codecs that messages can state, but no caller may ask for any more."""


def codec_of(spec: str, frame: bytes, key: bytes | None) -> gcodec.Codec:
    """Return the codec of a vector; for a spec that is no longer valid, the codec of its frame."""
    if spec not in NO_LONGER_ASKED:
        return gcodec.parse(spec)
    with pytest.raises(gcodec.ParameterError, match=r"^k=0: must be ratio or an integer from 1"):
        gcodec.parse(spec)
    return gcodec.Frame.from_bytes(frame, key=key).codec


def check_patch(fields: dict[str, str]) -> None:
    """Encode and apply one patch."""
    assert fields.keys() >= {"base", "dtype", "payload", "frame", "decoded"}
    unknown = fields.keys() - {"base", "dtype", "payload", "frame", "decoded", "shape", "name"}
    assert not unknown - {"key", "other"}, f"unknown keys: {sorted(unknown)}"
    dtype, payload, frame = fields["dtype"], data(fields["payload"]), data(fields["frame"])
    shape = shape_of({**fields, "grad": fields["base"]})
    old, new = (floats(fields[key], dtype).reshape(shape) for key in ("base", "decoded"))
    name = fields.get("name")
    key = fields["key"].encode() if "key" in fields else None
    if "other" not in fields:
        assert gcodec.encode_patch(new, old, name=name, key=key).hex(" ") == frame.hex(" ")
    assert bits(gcodec.apply_patch(frame, old, key=key)) == bits(new)
    assert bits(gcodec.apply_patch(frame, old, out=old, key=key)) == bits(new)
    parsed = reference_frame.parse(frame, key)
    assert parsed["payload"] == payload and parsed["nbits"] == 8 * len(payload)
    assert (parsed["codec_id"], parsed["dtype"]) == (16, DTYPE_CODES[dtype])
    assert (parsed["shape"], parsed["name"], parsed["seek"]) == (shape, name, None)
    base = [int(pattern, 16) for pattern in bits(floats(fields["base"], dtype))]
    own = patch.read(payload, parsed["nbits"], base, new.dtype.itemsize, dtype)
    assert [f"{pattern:0{2 * new.dtype.itemsize}x}" for pattern in own] == bits(new)


def check(spec: str, fields: dict[str, str]) -> None:
    """Encode and decode one vector."""
    if "base" in fields:
        assert spec == "patch"
        check_patch(fields)
        return
    assert fields.keys() >= REQUIRED, f"missing: {sorted(REQUIRED - fields.keys())}"
    unknown = fields.keys() - REQUIRED - OPTIONAL
    assert not unknown, f"unknown keys: {sorted(unknown)}"
    dtype, shape = fields["dtype"], shape_of(fields)
    payload, frame = data(fields["payload"]), data(fields["frame"])
    decoded = floats(fields["decoded"], dtype)
    parts = (part.split("=") for part in fields.get("scalars", "").split())
    scalars = {key: scalar_of(value) for key, value in parts}
    nbits = int(fields.get("bits", 8 * len(payload)))
    seed = int(fields.get("seed", "0"))
    name = fields.get("name")
    key = fields["key"].encode() if "key" in fields else None
    codec = codec_of(spec, frame, key)

    # The encoder writes exactly these bytes.
    x = floats(fields["grad"], dtype).reshape(shape) if "grad" in fields else None
    if x is None:
        assert codec.name in SEARCHES and "shape" in fields
        own = gcodec.Frame.from_bytes(frame, key=key).without_seek().payload
        result = codec.pack(codec.unpack(own, shape))
        written = gcodec.Frame(result.codec, dtype, shape, result, name, key).to_bytes()
    elif "residual" in fields:
        residual = floats(fields["residual"], "float32").reshape(shape)
        result = codec.pack(codec.quantize_residual(x, residual, seed=seed))
        assert bits(residual) == bits(floats(fields["after"], "float32"))
        written = gcodec.Frame(result.codec, dtype, shape, result, name, key).to_bytes()
    else:
        result = codec.encode(x, seed=seed)
        options: dict[str, Any] = {"nonfinite": fields.get("nonfinite", "raise")}
        written = gcodec.encode(x, codec, seed=seed, name=name, key=key, **options)
    assert result.tobytes().hex(" ") == payload.hex(" ")
    assert result.nbits == nbits
    if "seek" in fields:
        plain = written
        written = gcodec.Frame.from_bytes(plain, key=key).with_seek(int(fields["seek"])).to_bytes()
        assert gcodec.Frame.from_bytes(frame, key=key).without_seek().to_bytes() == plain
        assert bits(gcodec.decode(plain, key=key)) == bits(decoded)
    assert written.hex(" ") == frame.hex(" ")
    if scalars:
        for scalar, value in scalars.items():
            actual = result.scalars[scalar]
            assert actual == value or np.float32(actual) == np.float32(value)

    # The bytes decode to exactly these values, without the frame too.
    got = gcodec.decode(frame, key=key)
    assert got.shape == shape and got.dtype == DTYPES[dtype]
    assert bits(got) == bits(decoded)
    bare = result.codec.decode(payload, shape, nbits=nbits, **(scalars or result.scalars))
    assert bits(rounded(bare.reshape(-1), dtype)) == bits(decoded)

    # The reference parser reads the same fields from the frame, and builds the same frame from
    # them.
    parsed = reference_frame.parse(frame, key)
    assert parsed["end"] == len(frame)
    assert parsed["payload"] == payload and parsed["nbits"] == nbits
    assert parsed["codec_id"] == codec.id and parsed["dtype"] == DTYPE_CODES[dtype]
    assert parsed["shape"] == shape and parsed["name"] == name
    assert (parsed["seek"] is not None) == ("seek" in fields)
    assert math.prod(shape) == decoded.size
    rebuilt = reference_frame.build(
        parsed["codec_id"],
        parsed["dtype"],
        shape,
        parsed["params"],
        parsed["scalars"],
        payload,
        nbits,
        name,
        key,
        parsed["seek"],
    )
    assert rebuilt == frame
