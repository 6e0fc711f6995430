"""Messages of many tensors without error feedback."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tensor_pairs import DTYPES

import gcodec
from gcodec import ParameterError
from gcodec.feedback import derive_seed

SHAPES = {"a": (7, 3), "b": (64,), "empty": (0, 4), "large": (80, 60), "c": (2, 2, 2), "one": ()}
SMALL = ["a", "b", "c", "one"]
SPECS = [
    "sign",
    "minmax:bits=4",
    "terngrad",
    "qsgd:bucket=64",
    "ecsq:nmse=0.05",
    "raw",
    "lossless",
]


def tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        name: np.asarray(100 * rng.standard_normal(shape)).astype(dtype)
        for name, shape in SHAPES.items()
    }


def same(decoded: Mapping[str, np.ndarray], sent: Mapping[str, Any]) -> bool:
    """Return whether tensors have the names, dtypes, shapes and bits of those that were sent."""
    return decoded.keys() == sent.keys() and all(
        (x.dtype, x.shape, x.tobytes())
        == (np.asarray(sent[name]).dtype, sent[name].shape, np.asarray(sent[name]).tobytes())
        for name, x in decoded.items()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", SPECS)
def test_frames_are_those_of_encode(spec: str, dtype: str) -> None:
    named = tensors(DTYPES[dtype])
    listed, shared, *own = gcodec.iter_frames(gcodec.encode_many(named, spec, seed=9))
    assert json.loads(listed.decode().tobytes()) == [[name, list(SHAPES[name])] for name in SMALL]
    whole = np.concatenate([named[name].reshape(-1) for name in SMALL])
    seed = derive_seed(9, name="\0".join(SMALL))
    assert shared.to_bytes() == gcodec.encode(whole, spec, seed=seed)
    assert [frame.name for frame in own] == ["empty", "large"]
    for frame in own:
        name = str(frame.name)
        seed = derive_seed(9, name=name)
        assert frame.to_bytes() == gcodec.encode(named[name], spec, seed=seed, name=name)


@pytest.mark.parametrize("spec", SPECS)
def test_message_is_the_first_one_of_feedback(spec: str) -> None:
    named = tensors()
    first = gcodec.Feedback(spec, seed=4).compress_many(named)
    assert gcodec.encode_many(named, spec, seed=4) == first


@pytest.mark.parametrize("group_below", [0, 22, 4096, 1 << 20])
def test_tensors_of_all_dtypes_keep_every_bit(group_below: int) -> None:
    named = {
        f"{name}.{dtype}": x for dtype, kind in DTYPES.items() for name, x in tensors(kind).items()
    }
    named["wide"] = np.arange(9, dtype=">i4")
    named["columns"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    message = gcodec.encode_many(named, "lossless", group_below=group_below)
    decoded = gcodec.decode_many(message)
    assert same(
        {name: decoded[name] for name in named if name != "wide"},
        {name: x for name, x in named.items() if name != "wide"},
    )
    assert np.array_equal(decoded["wide"], named["wide"])
    count = sum(frame.name == "\\members" for frame in gcodec.iter_frames(message))
    assert count == (len(DTYPES) if group_below else 0)


def test_integers_remain_unchanged_beside_a_lossy_codec() -> None:
    steps = {"steps": np.arange(3), "epoch": np.array(5), "done": np.array(True)}
    message = gcodec.encode_many(tensors() | steps, "sign")
    decoded = gcodec.decode_many(message)
    assert same({name: decoded[name] for name in steps}, steps)
    shapes = [frame.shape for frame in gcodec.iter_frames(message) if frame.dtype == "int64"]
    assert shapes == [(4,)]  # they share a frame, too
    kinds = {(frame.dtype, str(frame.codec)) for frame in gcodec.iter_frames(message)}
    kinds.remove(("uint8", "raw"))  # the lists of members
    assert kinds == {("float32", "sign"), ("int64", "raw"), ("bool", "raw")}


def test_policy_groups_by_codec() -> None:
    policy = gcodec.Policy({"[ab]": "raw", "*": "sign"})
    frames = list(gcodec.iter_frames(gcodec.encode_many(tensors(), policy)))
    assert [frame.shape for frame in frames if frame.name is None] == [(85,), (9,)]
    assert [str(frame.codec) for frame in frames if frame.name is None] == ["raw", "sign"]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_message_does_not_depend_on_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {f"{number}": np.full(5000, number, np.float32) for number in range(20)} | tensors()
    expected = gcodec.encode_many(named, "terngrad")
    monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
    assert gcodec.encode_many(named, "terngrad") == expected


def test_arrays_of_other_libraries_share_frames() -> None:
    torch = pytest.importorskip("torch")
    named = {name: torch.from_numpy(x).bfloat16() for name, x in tensors().items()}
    message = gcodec.encode_many(named, "lossless")
    assert message == gcodec.encode_many(tensors(DTYPES["bfloat16"]), "lossless")
    feedback = gcodec.Feedback("sign")
    names = [frame.name for frame in gcodec.iter_frames(feedback.compress_many(named))]
    assert names == ["\\members", None, "empty", "large"]


@pytest.mark.parametrize("group_below", [0, 4096])
def test_tensors_take_the_kind_of_other_arrays(group_below: int) -> None:
    torch = pytest.importorskip("torch")
    named = {name: torch.from_numpy(x).bfloat16() for name, x in tensors().items()}
    named["steps"] = torch.arange(4)
    message = gcodec.encode_many(named, "lossless", group_below=group_below)
    wide = {name: x.double() if x.is_floating_point() else x for name, x in named.items()}
    decoded = gcodec.decode_many(message, like=wide | {"another": None})
    assert decoded.keys() == named.keys()
    for name, x in decoded.items():
        assert x.dtype == wide[name].dtype
        assert torch.equal(x, wide[name])
    places = {name: torch.zeros_like(x) for name, x in named.items()}
    received = gcodec.decode_many(message, out=places)
    for name, x in named.items():
        assert received[name] is places[name]
        assert torch.equal(x, places[name])


@pytest.mark.parametrize("argument", ["like", "out"])
@pytest.mark.parametrize("name", ["a", "large"])
def test_arrays_must_fit_the_message(name: str, argument: str) -> None:
    message = gcodec.encode_many(tensors(), "sign")
    for wrong, text in (
        (tensors()[name][1:], f"tensor '{name}': {argument}.shape=.*: must be "),
        (tensors()[name] > 0, f"tensor '{name}': {argument}.dtype='bool': must be "),
    ):
        with pytest.raises(ParameterError, match=text):
            gcodec.decode_many(message, **{argument: tensors() | {name: wrong}})
    with pytest.raises(TypeError, match=f"tensor '{name}': {argument} is of type str"):
        gcodec.decode_many(message, **{argument: tensors() | {name: "w"}})
    lacking = {key: x for key, x in tensors().items() if key != name}
    with pytest.raises(ParameterError, match=f"{argument}: has no array for the tensor '{name}'"):
        gcodec.decode_many(message, **{argument: lacking})
    with pytest.raises(ParameterError, match=f"{argument}=(?s:.*)must be a mapping"):
        gcodec.decode_many(message, **{argument: list(tensors().values())})


def test_only_one_of_like_and_out_is_allowed() -> None:
    with pytest.raises(ParameterError, match="like and out: pass only one"):
        gcodec.decode_many(b"", like={}, out={})


def test_arrays_are_the_limits() -> None:
    named = {"large": np.zeros(1 << 20, np.float32), "a": np.zeros(1 << 10, np.float32)}
    named["b"] = named["a"]
    message = gcodec.encode_many(named, "sign")
    small = {name: x[:9] for name, x in named.items()}
    tracemalloc.start()
    try:
        with pytest.raises(ParameterError):  # refused by its shape, before memory is allocated
            gcodec.decode_many(message, like=small)
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode_many(message, limits=gcodec.Limits(max_elements=1000))
    limits = gcodec.Limits(max_elements=1000)
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode_many(message, like=named, limits=limits)
    assert same(gcodec.decode_many(message, like=named), named)


def test_keys() -> None:
    message = gcodec.encode_many(tensors(), "lossless", key=b"secret")
    assert same(gcodec.decode_many(message, key=b"secret"), tensors())
    for frame in gcodec.iter_frames(message, key=b"secret"):
        assert frame.key == b"secret"
    with pytest.raises(gcodec.FormatError):
        gcodec.decode_many(message)


@pytest.mark.parametrize("name", ["a", "large"])
def test_errors_name_the_tensor(name: str) -> None:
    damaged = tensors()
    damaged[name].reshape(-1)[-1] = np.nan
    with pytest.raises(ParameterError, match=f"tensor '{name}': x holds 1 NaN or Inf"):
        gcodec.encode_many(damaged, "minmax")
    zeros = gcodec.decode_many(gcodec.encode_many(damaged, "raw", nonfinite="zero"))
    assert same(zeros, {key: np.nan_to_num(x) for key, x in damaged.items()})
    passed = gcodec.decode_many(gcodec.encode_many(damaged, "raw", nonfinite="propagate"))
    assert same(passed, damaged)
    damaged[name] = damaged[name].astype(np.complex64)
    with pytest.raises(TypeError, match=f"'{name}'.* has dtype complex64"):
        gcodec.encode_many(damaged, "minmax")
    damaged[name] = np.ma.masked_array(damaged[name], True)
    with pytest.raises(TypeError, match=f"'{name}'.* is a masked array"):
        gcodec.encode_many(damaged, "minmax")


@pytest.mark.parametrize(
    ("named", "options", "text"),
    [
        ([("a", np.ones(3))], {}, "tensors=.*: must be a mapping of names to arrays"),
        ({"\\members": np.ones(3)}, {}, "a name other than"),
        ({3: np.ones(3)}, {}, "name"),
        ({"a": np.ones(3)}, {"group_below": -1}, "group_below"),
        ({"a": np.ones(3)}, {"key": b""}, "key"),
        ({"a": np.ones(3)}, {"seed": -1}, "seed"),
        ({"a": np.ones(3)}, {"nonfinite": "drop"}, "nonfinite"),
        ({"a": np.ones(3)}, {"codec": {"x": "sign"}}, "codec"),
        ({"a": np.ones(3), "b": np.ones(3)}, {"codec": gcodec.Policy({"b": "sign"})}, "'a'"),
    ],
)
def test_invalid_arguments(named: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        gcodec.encode_many(named, **{"codec": "sign"} | options)


def test_too_many_tensors_are_refused() -> None:
    named = dict.fromkeys(map(str, range(65537)), np.ones(1, np.float32))
    with pytest.raises(
        ParameterError, match="tensors: has 65537 tensors, must have at most 65536"
    ):
        gcodec.encode_many(named, "raw")


def test_no_tensors() -> None:
    assert gcodec.encode_many({}, "sign") == b""
    assert gcodec.decode_many(b"") == {}


def test_tensors_of_similar_exponents_share_frames() -> None:
    rng = np.random.default_rng(3)
    named = {
        f"{kind}.{number}": (scale * rng.standard_normal((120, 100))).astype(np.float32)
        for number in range(8)
        for kind, scale in (("moment", 1e-9), ("weight", 0.7))
    }
    message = gcodec.encode_many(named, "lossless:mode=small", group_below=1 << 20)
    lists = [frame for frame in gcodec.iter_frames(message) if frame.name == "\\members"]
    names = [[name for name, _ in json.loads(frame.decode().tobytes())] for frame in lists]
    kinds = ("moment", "weight")
    assert names == [[name for name in named if name.startswith(kind)] for kind in kinds]
    assert same(gcodec.decode_many(message), named)
    # Other codecs and messages that state the elements themselves have one frame. With mode=fast,
    # further frames must save more.
    for spec in ("sign", "raw", "lossless:mode=stored", "lossless:mode=fast"):
        message = gcodec.encode_many(named, spec, group_below=1 << 20)
        assert [frame.name for frame in gcodec.iter_frames(message)] == ["\\members", None]
    larger = {f"{name}.{part}": x for name, x in named.items() for part in range(3)}
    message = gcodec.encode_many(larger, "lossless:mode=fast", group_below=1 << 20)
    assert sum(frame.name is None for frame in gcodec.iter_frames(message)) == 2
    message = gcodec.Feedback("lossless").compress_many(named, group_below=1 << 20)
    assert sum(frame.name is None for frame in gcodec.iter_frames(message)) == 2


def test_tensor_unlike_all_others_has_its_own_frame() -> None:
    rng = np.random.default_rng(4)
    named = {f"{k}": (1e-3 * rng.standard_normal(40000)).astype(np.float32) for k in range(3)}
    named["norm"] = np.exp2(rng.uniform(-60, 60, (400, 200))).astype(np.float32)
    message = gcodec.encode_many(named, "lossless", group_below=1 << 20)
    assert [frame.name for frame in gcodec.iter_frames(message)] == ["\\members", None, "norm"]
    assert same(gcodec.decode_many(message), named)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_values_of_all_dtypes_share_frames(dtype: str) -> None:
    rng = np.random.default_rng(5)
    exponents = {"int8": 3, "float8_e4m3fn": 5}.get(dtype, 7)
    named = {}
    for number in range(40):
        values = rng.standard_normal((50, 51)) * 2.0 ** (exponents if number % 2 else 0)
        named[f"{number}"] = np.asfortranarray(values.astype(DTYPES[dtype]))
    named["wide"] = named["3"].astype(named["3"].dtype.newbyteorder(">"))
    named["strided"] = named["4"][::2, ::-3]
    message = gcodec.encode_many(named, "lossless:mode=fast", group_below=1 << 20)
    decoded = gcodec.decode_many(message)
    assert all(np.array_equal(decoded[name], x) for name, x in named.items())
    assert any(frame.name is None for frame in gcodec.iter_frames(message))
