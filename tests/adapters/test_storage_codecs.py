"""The adapters for numcodecs (Zarr 2) and Zarr 3."""

from __future__ import annotations

import array
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gcodec
from gcodec.errors import Corrupt, ParameterError, Truncated

numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")

from gcodec.numcodecs import GradientCodec  # noqa: E402

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(1).standard_normal((10, 7)).astype(np.float32)


@pytest.fixture
def zarr() -> Any:
    module = pytest.importorskip("zarr", reason="zarr is not installed")
    if int(module.__version__.split(".")[0]) < 3:
        pytest.skip("zarr is of version 2")
    return module


# --- numcodecs ----------------------------------------------------------------------------------


def test_numcodecs_configuration() -> None:
    numcodecs.register_codec(GradientCodec)
    codec = GradientCodec({"name": "qsgd", "s": 3, "form": "dense"}, seed=4)
    config = codec.get_config()
    assert config["id"] == "gcodec"
    assert config["spec"] == str(gcodec.parse("qsgd:s=3,form=dense"))
    assert numcodecs.get_codec(config) == codec != GradientCodec("qsgd:s=3")
    wrong_values: list[dict[str, Any]] = [{"spec": "nosuch"}, {"seed": -1}, {"nonfinite": "x"}]
    wrong_values += [{"dtype": "int8"}, {"dtype": np.dtype("float32")}]  # JSON has no dtypes
    for wrong in wrong_values:
        with pytest.raises(ParameterError):
            GradientCodec(**{"spec": "raw", **wrong})


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_numcodecs_arrays(dtype: str) -> None:
    x = X.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    codec = GradientCodec("qsgd:s=3", seed=9)
    frame = codec.encode(x)
    assert frame == gcodec.encode(x, "qsgd:s=3", seed=9)
    decoded = codec.decode(frame)
    assert (decoded.dtype.itemsize, decoded.shape) == (x.dtype.itemsize, x.shape)
    out = np.empty_like(decoded)
    assert codec.decode(bytearray(frame), out=out) is out
    assert np.array_equal(out, decoded)
    flat = bytearray(decoded.nbytes)
    codec.decode(frame, out=flat)
    assert bytes(flat) == decoded.tobytes()


def test_numcodecs_buffers_without_dtype() -> None:
    codec = GradientCodec("raw")
    assert codec.decode(codec.encode(array.array("f", [1, 2]))).tolist() == [1, 2]
    for buffer in (b"1234", np.zeros(4, np.uint8)):  # which cannot be told apart
        with pytest.raises(TypeError, match=r"dtype uint8: .*; the spec lossless .* dtype='float"):
            codec.encode(buffer)
    assert GradientCodec("raw", dtype="float16").decode(
        GradientCodec("raw", dtype="float16").encode(np.float16([1, 2]).tobytes())
    ).tolist() == [1, 2]
    for other in (np.array([None]), np.zeros(2, "c8"), np.zeros(2, "M8[s]"), np.array(["text"])):
        for encoder in (codec, GradientCodec("lossless")):
            name = other.dtype.name
            with pytest.raises(
                TypeError, match=rf"^buf has dtype {re.escape(name)}: gcodec takes"
            ):
                encoder.encode(other)
    with pytest.raises(
        TypeError, match=r"gcodec\.encode\(buf\.view\(numpy\.int64\), 'lossless'\)"
    ):
        GradientCodec("lossless").encode(np.zeros(2, "m8[ns]"))
    typed, bits = GradientCodec("raw", dtype="float32"), np.float32([1, 2]).view(np.uint32)
    assert typed.decode(typed.encode(bits)).tolist() == [1, 2]
    for counts in (np.arange(4), np.arange(4, dtype=np.int16)):  # half a value or two halves
        with pytest.raises(TypeError, match=f"dtype {counts.dtype}"):
            typed.encode(counts)
    with pytest.raises(ParameterError, match=r"buf\.nbytes=5"):
        typed.encode(b"12345")
    with pytest.raises(ParameterError, match=r"out\.nbytes=192: must be 96"):
        codec.decode(codec.encode(X.reshape(-1)[:24]), out=np.empty(24))
    with pytest.raises(TypeError, match="byte order"):  # decoded bytes have the other one
        codec.encode(X.astype(X.dtype.newbyteorder()))
    with pytest.raises(TypeError, match="byte order"):
        codec.decode(codec.encode(X), out=np.empty(X.shape, X.dtype.newbyteorder()))
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(X[::2, ::2])
    with pytest.raises(Truncated):
        codec.decode(codec.encode(X)[:-1])
    with pytest.raises(ParameterError, match=r"out\.nbytes=12: must be"):
        codec.decode(codec.encode(X), out=np.empty(3, np.float32))
    with pytest.raises(ParameterError, match=r"^out is read-only"):
        codec.decode(codec.encode(X), out=bytes(X.nbytes))
    assert codec.decode(codec.encode(np.asfortranarray(X))).tobytes() == X.tobytes("F")


def test_numcodecs_refuses_masked_arrays() -> None:
    codec, masked = GradientCodec("raw"), np.ma.masked_less(np.arange(3, dtype=np.float32), 1)
    with pytest.raises(TypeError, match=r"^buf is a masked array"):
        codec.encode(masked)
    with pytest.raises(TypeError, match=r"^out is a masked array"):
        codec.decode(codec.encode(masked.data), masked)


def test_numcodecs_reads_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zarr 2 passes neither limits nor `out`."""
    codec, chunk = GradientCodec("lossless"), np.zeros(1000, np.int8)
    monkeypatch.setattr("gcodec.limits.DEFAULT_LIMITS", gcodec.Limits(max_elements=999))
    assert codec.decode(codec.encode(chunk)).size == 1000
    monkeypatch.setattr("gcodec.numcodecs._LIMITS", gcodec.Limits(max_bytes=999))
    with pytest.raises(ParameterError, match=r"^buf\.nbytes=1000: must be at most 999"):
        codec.encode(chunk)


# --- Zarr ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_zarr_2(zarr: Any, order: str) -> None:
    numcodecs.register_codec(GradientCodec)
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store,
        shape=X.shape,
        chunks=(4, 3),
        dtype="float32",
        zarr_format=2,
        order=order,
        compressors=GradientCodec("raw"),
    )
    array[:] = X
    assert np.array_equal(zarr.open_array(store, mode="r")[:], X)


def test_zarr_2_refuses_another_byte_order(zarr: Any) -> None:
    """Zarr 2 takes decoded bytes for the byte order of the array, which no frame stores."""
    numcodecs.register_codec(GradientCodec)
    swapped = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=X.shape,
        dtype=X.dtype.newbyteorder(),
        zarr_format=2,
        compressors=GradientCodec("raw"),
    )
    with pytest.raises(TypeError, match="byte order"):
        swapped[:] = X


def test_zarr_3_names_a_fill_value_that_the_codec_refuses(zarr: Any) -> None:
    codec = importlib.import_module("gcodec.zarr").GradientCodec("sign")
    options = {"shape": (3,), "chunks": (2,), "dtype": "float32", "compressors": None}
    for fill_value, reason in (
        (np.nan, ".*; the rest of a partly written chunk has fill_value=nan"),
        (0, "[^;]*; with nonfinite='zero'[^;]*$"),
    ):
        store = zarr.storage.MemoryStore()
        array = zarr.create_array(store, serializer=codec, fill_value=fill_value, **options)
        with pytest.raises(ParameterError, match=f"must be finite as float32{reason}"):
            array[:] = np.array([1, 2, 3 if fill_value else np.inf], np.float32)


@pytest.mark.parametrize("configuration", [None, {}, {"seed": 1}, {"spec": "sign", "seeds": 1}])
def test_zarr_3_metadata_with_another_configuration(zarr: Any, configuration: Any) -> None:
    codec = importlib.import_module("gcodec.zarr").GradientCodec
    entry = {"name": "gcodec"} if configuration is None else {"configuration": configuration}
    with pytest.raises(ParameterError, match=r"^configuration=\[.*must be spec, and optionally"):
        codec.from_dict(entry)


def test_zarr_3(zarr: Any) -> None:
    module = importlib.import_module("gcodec.zarr")
    zarr.registry.register_codec("gcodec", module.GradientCodec)
    store = zarr.storage.MemoryStore()
    codec = module.GradientCodec("topk:k=3", seed=2)
    options = {"shape": X.shape, "chunks": (4, 3), "compressors": None}
    array = zarr.create_array(store, dtype="float32", serializer=codec, **options)
    array[:] = X
    opened = zarr.open_array(store, mode="r")
    loaded = opened[:]
    for i in range(0, 10, 4):
        for j in range(0, 7, 3):
            chunk = np.zeros((4, 3), np.float32)
            part = X[i : i + 4, j : j + 3]
            chunk[: part.shape[0], : part.shape[1]] = part
            decoded = gcodec.decode(gcodec.encode(chunk, "topk:k=3"))
            assert np.array_equal(
                loaded[i : i + 4, j : j + 3], decoded[tuple(map(slice, part.shape))]
            )
    assert opened.serializer == codec
    assert module.GradientCodec.from_dict(codec.to_dict()) == codec
    sharded = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(8, 6),
        shards=(8, 6),
        chunks=(4, 3),
        dtype="float64",
        serializer=module.GradientCodec("raw"),
    )
    sharded[:] = X[:8, :6]
    assert np.array_equal(sharded[:], X[:8, :6])
    key = "c/0/0"
    for values, wrong in (
        (X[:4, :3].astype(np.float64), "dtype is float64, the chunk's float32$"),
        (np.ones((4, 3), np.int32), "dtype is int32"),
        (X[:3, :4], r"shape is \(3, 4\), the chunk's \(4, 3\)"),
        (X[:5, :4], r"shape is \(5, 4\), the chunk's \(4, 3\)"),
    ):
        data = gcodec.encode(values, "lossless")
        store._store_dict[key] = type(store._store_dict[key]).from_bytes(data)
        with pytest.raises(Corrupt, match=wrong):
            opened[:]
    with pytest.raises(ParameterError, match="dtype='int32'"):
        zarr.create_array(zarr.storage.MemoryStore(), dtype="int32", serializer=codec, **options)
    with pytest.raises(ParameterError, match="nonfinite"):
        module.GradientCodec("raw", nonfinite="x")


# --- packaging ----------------------------------------------------------------------------------


def test_entry_points_exist() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    entry_points = re.findall(
        r'^\[project\.entry-points\."(\w+)\.codecs"\]\ngcodec = "([\w.]+):(\w+)"$', text, re.M
    )
    assert [group for group, _, _ in entry_points] == ["numcodecs", "zarr"]
    for group, module, name in entry_points:
        assert module == f"gcodec.{group}"
        pytest.importorskip(group, reason=f"{group} is not installed")
        assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("module", ["numcodecs", "zarr"])
def test_import_without_the_package(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None\nimport gcodec.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith(f"pip install 'gcodec[{module}]'")
