"""`save_file`, `load_file` and `open`: trees of tensors as files of frames."""

from __future__ import annotations

import copy
import dataclasses
import enum
import gzip
import io
import json
import math
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from command_line import run
from golden import tree as golden
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.api import files
from gcodec.frame import crc32c
from gcodec.limits import DEFAULT_LIMITS
from gcodec.tensorfiles import frame_file, frame_list, structure
from gcodec.wire.primitives import leb128

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


class Moments(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class State:
    moments: Moments
    step: int


KEYS = st.text(max_size=5) | st.integers(-(2**63), 2**64 - 1)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
TREES = st.recursive(
    SCALARS | st.just(array(1, -2)),
    lambda trees: (
        st.lists(trees, max_size=3)
        | st.lists(trees, max_size=3).map(tuple)
        | st.dictionaries(KEYS, trees, max_size=3)
    ),
    max_leaves=8,
).filter(lambda tree: isinstance(tree, (dict, list, tuple)))


@given(TREES)
def test_trees_come_back_whole(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.mktemp("trees") / "tree.gcf"
    try:
        gcodec.save_file(tree, path, "raw")
    except gcodec.ParameterError as error:
        assert "two tensors have the path" in str(error) or "UTF-8" in str(error)
        return
    assert golden.same(gcodec.load_file(path), tree)
    assert golden.same(gcodec.load_file(path, tree), tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"\\structure": array(1), "a": array(2)},
        {"\\file:a.safetensors": array(1)},
        {"a": array(1), "\\": array(2)},
        ["a"],
        {"a": [2**64 - 1, -(2**63)], 2**64 - 1: array(1), -(2**63): 2},
    ],
)
def test_unusual_keys_and_numbers_come_back(tmp_path: Path, tree: Any) -> None:
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    assert golden.same(gcodec.load_file(tmp_path / "x.gcf"), tree)


def test_scalars_of_numpy_are_tensors(tmp_path: Path) -> None:
    tree = {"a": np.float64(0.5), "b": array(1)}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    with gcodec.open(tmp_path / "x.gcf") as file:
        assert file.shapes() == {"a": (), "b": (1,)}
        assert file.dtypes() == {"a": "float64", "b": "float32"}
    assert type(gcodec.load_file(tmp_path / "x.gcf", like=tree)["a"]) is np.float64


def test_mappings_of_tensors_have_their_keys_as_names(tmp_path: Path) -> None:
    tree = {"b.c": array(1), "a": array(2, 3), "": array()}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    frames = list(gcodec.iter_frames(tmp_path / "x.gcf"))
    assert [frame.name for frame in frames] == ["b.c", "a", ""]


class Layer(str, enum.Enum):  # not StrEnum, whose members are printed as their values
    FIRST = "first"


class Stage(enum.IntEnum):
    ONE = 1


def test_members_of_enumerations_are_keys(tmp_path: Path) -> None:
    tree = {Layer.FIRST: {"w": array(1)}, Stage.ONE: {"w": array(2)}}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    assert gcodec.load_file(tmp_path / "x.gcf") == {"first": {"w": array(1)}, 1: {"w": array(2)}}
    assert gcodec.load_file(tmp_path / "x.gcf", like=tree) == tree
    with gcodec.open(tmp_path / "x.gcf") as file:
        assert file.names() == ["first.w", "1.w"]


def test_members_of_an_enumeration_are_refused_with_advice(tmp_path: Path) -> None:
    class Mode(enum.Enum):
        TRAIN = "train"

    with pytest.raises(
        TypeError, match=r"'mode' is of type Mode: .*; use its value, as in x\.value"
    ):
        gcodec.save_file({"mode": Mode.TRAIN}, tmp_path / "mode.gcf", "raw")


def test_counters_of_like_take_the_numbers_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "counter.gcf"
    tree = {"seen": Counter("aab"), "values": np.ones(2, np.float32)}
    gcodec.save_file(tree, path, "raw")
    like = Counter("ab")
    like.unit = "letter"  # type: ignore[attr-defined]
    loaded = gcodec.load_file(path, like={**tree, "seen": like})
    assert loaded["seen"] == Counter("aab") and loaded["seen"].unit == "letter"


def test_types_of_like_are_restored(tmp_path: Path) -> None:
    state = State(Moments(array(1, 2), OrderedDict(w=array(3))), 7)
    gcodec.save_file(state, tmp_path / "x.gcf", "raw")
    plain = gcodec.load_file(tmp_path / "x.gcf")
    assert golden.same(
        plain, {"moments": {"first": array(1, 2), "second": {"w": array(3)}}, "step": 7}
    )
    like = State(Moments(array(0, 0), OrderedDict(w=array(0))), 0)
    loaded = gcodec.load_file(tmp_path / "x.gcf", like)
    assert type(loaded) is State and loaded.step == 7
    assert type(loaded.moments) is Moments and type(loaded.moments.second) is OrderedDict
    assert loaded.moments.first.tolist() == [1, 2]
    assert like.moments.first.tolist() == [0, 0]


def test_state_dict_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    gcodec.save_file(checkpoint, tmp_path / "x.gcf", "raw")
    loaded = gcodec.load_file(tmp_path / "x.gcf", checkpoint)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert torch.equal(loaded["model"]["0.weight"], checkpoint["model"]["0.weight"])
    assert loaded["optimizer"]["param_groups"] == checkpoint["optimizer"]["param_groups"]
    assert loaded["model"]._metadata == checkpoint["model"]._metadata  # versions of the modules


def test_pytrees_of_jax(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

        def tree_flatten(self) -> Any:
            return (self.left, self.right), None

        @classmethod
        def tree_unflatten(cls, _: None, children: Any) -> Any:
            return cls(*children)

    tree = {"pair": Pair(jax.numpy.ones(3), jax.numpy.zeros((2, 2)))}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    loaded = gcodec.load_file(tmp_path / "x.gcf", tree)
    assert type(loaded["pair"]) is Pair
    assert isinstance(loaded["pair"].left, jax.Array) and loaded["pair"].left.tolist() == [1, 1, 1]


def test_pytrees_of_jax_whose_keys_are_plain(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    class Named:
        def __init__(self, *children: Any) -> None:
            self.children = children

    class Odd(Named):
        pass

    def register(cls: type, keys: tuple[Any, ...]) -> None:
        jax.tree_util.register_pytree_with_keys(
            cls,
            lambda node: (tuple(zip(keys, node.children, strict=True)), None),
            lambda _, children: cls(*children),
        )

    register(Named, ("w", "b"))
    register(Odd, (("w",), ("b",)))
    tree = {"layer": Named(array(1), array(2))}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    assert gcodec.load_file(tmp_path / "x.gcf") == {"layer": {"w": array(1), "b": array(2)}}
    loaded = gcodec.load_file(tmp_path / "x.gcf", like=tree)
    assert type(loaded["layer"]) is Named and loaded["layer"].children == (array(1), array(2))
    with pytest.raises(TypeError, match=r"the key .* is of type tuple"):
        gcodec.save_file({"layer": Odd(array(1), array(2))}, tmp_path / "y.gcf", "raw")


def test_policies_pick_codecs(tmp_path: Path) -> None:
    policy = gcodec.Policy({"*.bias": "raw", "*": "minmax:bits=4"})
    tree = {"fc": {"weight": np.arange(64, dtype=np.float32), "bias": array(1), "n": np.arange(3)}}
    gcodec.save_file(tree, tmp_path / "x.gcf", policy)
    with gcodec.open(tmp_path / "x.gcf") as file:
        codecs = {name: header.codec.name for name, header in file.headers().items()}
        assert codecs == {"fc.weight": "minmax", "fc.bias": "raw", "fc.n": "raw"}
        assert file["fc.n"].tolist() == [0, 1, 2]
    assert gcodec.Frame.from_bytes(gcodec.encode(array(1), policy, name="a.bias")).codec.name == (
        "raw"
    )


def test_seeds_depend_on_names(tmp_path: Path) -> None:
    x = np.full(1000, 0.3, np.float32)
    gcodec.save_file({"a": x, "b": x}, tmp_path / "x.gcf", "qsgd:s=1", seed=5)
    gcodec.save_file({"a": x, "b": x}, tmp_path / "y.gcf", "qsgd:s=1", seed=5)
    first, second = gcodec.load_file(tmp_path / "x.gcf").values()
    assert not np.array_equal(first, second)
    assert (tmp_path / "x.gcf").read_bytes() == (tmp_path / "y.gcf").read_bytes()


def test_missed_targets_are_reported_with_the_name_of_the_tensor(tmp_path: Path) -> None:
    reports: list[tuple[str, float]] = []
    tree = {"bias": array(1, -2, 3), "step": 7, "flat": array(0, 0)}
    gcodec.save_file(
        tree,
        tmp_path / "x.gcf",
        "ecsq:bits=1.5",
        report=lambda name, missed: reports.append((name, missed.target)),
    )
    assert reports == [("bias", 1.5)]


def test_nonfinite_values_follow_their_policy(tmp_path: Path) -> None:
    path, tree = tmp_path / "x.gcf", {"w": array(np.nan, 2)}
    gcodec.save_file(tree, path, "raw", nonfinite="zero")
    assert gcodec.load_file(path)["w"].tolist() == [0, 2]
    gcodec.save_file(tree, path, "raw", nonfinite="propagate")
    assert np.isnan(gcodec.load_file(path)["w"][0])
    with pytest.raises(gcodec.ParameterError, match=r"^tensor 'w': "):
        gcodec.save_file(tree, path, "raw")


def test_open_decodes_on_access(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    gcodec.save_file({"w": rows, "h": np.ones(2, ml_dtypes.bfloat16)}, tmp_path / "x.gcf", "raw")
    with gcodec.open(tmp_path / "x.gcf") as file:
        assert file.names() == list(file) == ["w", "h"] and len(file) == 2
        assert file.shapes() == {"w": (4, 3), "h": (2,)}
        assert file.dtypes() == {"w": "float32", "h": "bfloat16"}
        assert "w" in file and "x" not in file
        assert file.decode_range("w", 3, 6).tolist() == [3, 4, 5]
        out = np.zeros((4, 3), np.float32)
        assert file.decode("w", out=out) is out and np.array_equal(out, rows)
        assert repr(file).endswith("x.gcf': 2 tensors, 52 bytes in 102>")
        with pytest.raises(KeyError, match="has no tensor 'ww'"):
            file["ww"]
        weights = file["w"]
    assert np.array_equal(weights, rows)
    assert repr(file).startswith("<closed TensorFile")
    with pytest.raises(gcodec.ParameterError, match="open, but it was closed"):
        pickle.dumps(file)
    with pytest.raises(gcodec.ParameterError, match="open, but it was closed"):
        file["w"]


def test_opened_files_are_pickled_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gcodec.save_file({"w": array(1, 2)}, "x.gcf", "raw")
    with gcodec.open("x.gcf", limits=gcodec.Limits(max_elements=2)) as file:
        data = pickle.dumps(file)
        again = copy.copy(file)
    monkeypatch.chdir(tmp_path.parent)
    for opened in (pickle.loads(data), again):
        assert opened["w"].tolist() == [1, 2] and opened.path == tmp_path / "x.gcf"
    gcodec.save_file({"w": array(1, 2, 3)}, tmp_path / "x.gcf", "raw")
    with pytest.raises(gcodec.LimitExceeded):
        pickle.loads(data)
    signed = gcodec.open(tmp_path / "x.gcf", key=b"a secret")
    with pytest.raises(TypeError, match="with a key cannot be pickled: open it in each"):
        pickle.dumps(signed)


def test_damage_of_one_tensor_spares_the_others(tmp_path: Path) -> None:
    gcodec.save_file({"a": array(1, 2), "b": array(3)}, tmp_path / "x.gcf", "raw")
    data = bytearray((tmp_path / "x.gcf").read_bytes())
    data[-6] ^= 1  # in the payload of b
    (tmp_path / "x.gcf").write_bytes(data)
    with gcodec.open(tmp_path / "x.gcf") as file:
        assert file["a"].tolist() == [1, 2]
        with pytest.raises(gcodec.Corrupt, match="frame 1"):
            file["b"]
    with pytest.raises(gcodec.Corrupt) as caught:
        gcodec.load_file(tmp_path / "x.gcf")
    assert str(caught.value).startswith(f"{tmp_path / 'x.gcf'}: frame 1: ")


def test_errors_name_the_byte_of_the_file(tmp_path: Path) -> None:
    """Also if the payload has a right checksum and invalid contents."""
    first = gcodec.encode(array(1, 2), "raw", name="a")
    frame = gcodec.Frame.from_bytes(gcodec.encode(array(1, 2), "qsgd:bucket=2", name="b"))
    payload = frame.payload._replace(data=np.full_like(frame.payload.data, 255))  # its norm is NaN
    frame = dataclasses.replace(frame, payload=payload)
    path, start = tmp_path / "x.gcf", len(first) + len(frame.header())
    path.write_bytes(first + frame.to_bytes())
    message = rf"^frame 1 'b': a norm must be finite, and not negative \(at byte {start}\)$"
    with gcodec.open(path) as file:
        for read in (file.decode, lambda name: file.decode_range(name, 0, 1)):
            with pytest.raises(gcodec.Corrupt, match=message) as caught:
                read("b")
            assert caught.value.offset == start
    for key in (None, b"secret"):
        before = gcodec.encode(array(1, 2), "raw", name="a", key=key)
        data = before + dataclasses.replace(frame, key=key).to_bytes()
        *_, stored = frame_list.read_frames(data, DEFAULT_LIMITS, key)
        with pytest.raises(gcodec.Corrupt) as caught, stored.locate_errors():
            stored.frame.decode()
        assert caught.value.offset == len(before) + len(frame.header())


def test_headers_are_verified_without_payloads(tmp_path: Path) -> None:
    path, first = tmp_path / "x.gcf", gcodec.encode(array(1), "raw", name="a")
    head = gcodec.Frame.from_bytes(gcodec.encode(np.ones((0, 3)), "raw", name="b")).header()

    def refused(second: bytes, kind: type, limits: gcodec.Limits | None = None) -> int:
        path.write_bytes(first + second)
        file = gcodec.open(path, limits=limits)
        with file, pytest.raises(gcodec.FormatError, match=r"^frame 1: ") as caught:
            file.headers()
        assert kind in (caught.type, gcodec.FormatError)
        return -1 if caught.value.offset is None else caught.value.offset - len(first)

    for at in range(len(head)):
        flipped = bytes(byte ^ (k == at) for k, byte in enumerate(head))
        assert 0 <= refused(flipped + bytes(4), gcodec.FormatError) <= len(head) + 4
    whole = gcodec.encode(array(1, 2), "raw", name="b")
    for size in range(1, len(whole)):
        assert refused(whole[:size], gcodec.Truncated) <= size
    assert refused(whole[:-1], gcodec.Truncated) == len(whole) - 1
    assert refused(whole, gcodec.LimitExceeded, gcodec.Limits(max_elements=1)) == 0
    dtype, shape = b"\xc8", b"\0" + leb128(1 << 62)
    for at, end, field, kind in (
        (6, 7, dtype, gcodec.Unsupported),
        (8, 10, shape, gcodec.Corrupt),
    ):
        changed = head[:at] + field + head[end:-4]
        assert refused(changed + crc32c(changed) + bytes(4), kind) == at


def test_outlines_of_frames() -> None:
    frames = [gcodec.encode(array(1, 2), "raw", name="a", key=key) for key in (b"secret", None)]
    data = b"".join(frames)
    assert list(frame_list.outlines(data)) == [
        ("a", 0, len(frames[0])),
        ("a", len(frames[0]), len(data)),
    ]
    for cut in (1, len(frames[1]) + 1):
        with pytest.raises(gcodec.Truncated, match="the bytes end within the frame"):
            list(frame_list.outlines(data[:-cut]))


@pytest.mark.parametrize("read", [gcodec.open, gcodec.load_file])
def test_errors_name_the_file(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    text = "frame 0: not a frame: the bytes do not begin with GCF"
    hint = "; the command gcodec encode compresses .safetensors files"
    other = tmp_path / "step.txt"
    other.write_bytes(b"no frame")
    for path, end in ((other, ""), (EXAMPLE, hint)):
        with pytest.raises(gcodec.Corrupt) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {text}{end} (at byte 0)"


def test_keys_authenticate(tmp_path: Path) -> None:
    tree = {"a": [array(1)]}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw", key=b"secret")
    assert golden.same(gcodec.load_file(tmp_path / "x.gcf", key=b"secret"), tree)
    file = gcodec.open(tmp_path / "x.gcf", key=b"other")
    with file, pytest.raises(gcodec.FormatError, match=r"^frame 1: ") as caught:
        file["a.0"]
    start = (tmp_path / "x.gcf").read_bytes().rindex(b"GCF")
    assert caught.value.offset is not None and caught.value.offset >= start


def test_failed_writes_leave_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gcf"
    gcodec.save_file({"a": array(1)}, path, "raw")
    before = path.read_bytes()
    with pytest.raises(gcodec.ParameterError, match="tensor 'b'"):
        gcodec.save_file({"a": array(1), "b": array(np.nan)}, path, "sign")
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_limits_bound_each_tensor(tmp_path: Path) -> None:
    gcodec.save_file({"a": array(1, 2, 3)}, tmp_path / "x.gcf", "raw")
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.load_file(tmp_path / "x.gcf", limits=gcodec.Limits(max_elements=2))


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": [array(0)]}, "has 1 items: must have 2"),
        ({"a": (array(0), 5), "b": 3}, "has 'b', which the file lacks"),
        ({"b": 1}, "lacks 'a', which the file has"),
        ({"a": {"x": array(0)}}, "must be a list or a tuple"),
        ({"a": 5}, "must be a list or a tuple"),
        ({"a": object()}, "must be a list or a tuple"),
        ({"a": [3, 5]}, "must be an array"),
        ({"a": [array(0), array(0)]}, "must be a scalar"),
        ({"a": [array(0, 0), 5]}, "shape"),
    ],
)
def test_like_must_have_the_structure(tmp_path: Path, like: Any, message: str) -> None:
    gcodec.save_file({"a": [array(1), 5]}, tmp_path / "x.gcf", "raw")
    with pytest.raises(gcodec.ParameterError, match=message):
        gcodec.load_file(tmp_path / "x.gcf", like)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gcf"
    for tree in (3, "text", None):
        with pytest.raises(TypeError, match="tree is of type"):
            gcodec.save_file(tree, path, "raw")
    released = memoryview(bytearray(8))
    released.release()
    for leaf in (object(), {1, 2}, 1j, np.array(["a"]), np.ones(2, complex), released, State):
        with pytest.raises(TypeError, match="x"):
            gcodec.save_file({"x": leaf}, path, "raw")
    for key, kind in ((1.5, "float"), (True, "bool")):
        with pytest.raises(TypeError, match=rf"the key {key} is of type {kind}"):
            gcodec.save_file({key: array(1)}, path, "raw")
    with pytest.raises(gcodec.ParameterError, match="two tensors have the path '1'"):
        gcodec.save_file({1: array(1), "1": array(2)}, path, "raw")
    with pytest.raises(
        gcodec.ParameterError, match=r"^tree: 'a\.0' is an integer of 65 bits: .*- 1$"
    ):
        gcodec.save_file({"a": [2**64]}, path, "raw")
    with pytest.raises(
        gcodec.ParameterError, match=r"^tree: 'a\.0' is '\\udc80': must be .*UTF-8"
    ):
        gcodec.save_file({"a": ["\udc80"]}, path, "raw")
    with pytest.raises(
        gcodec.ParameterError, match=r"^tree: 'a': a key is '\\udc80': must be .*UTF"
    ):
        gcodec.save_file({"a": {"\udc80": 1}}, path, "raw")
    for key in (2**64, -(2**63) - 1, 10**5000):
        for item in (array(1), 3):
            with pytest.raises(gcodec.ParameterError, match=r"2\*\*64 - 1"):
                gcodec.save_file({"a": {key: item}, "b": array(1)}, path, "raw")
    circle: list[Any] = [array(1)]
    circle.append(circle)
    with pytest.raises(gcodec.ParameterError, match="nested at most 64 deep"):
        gcodec.save_file(circle, path, "raw")
    for name in ("x.safetensors", "X.NPZ", "x.pt"):
        with pytest.raises(gcodec.ParameterError, match=r"must be a file named \.gcf"):
            gcodec.save_file({"a": array(1)}, tmp_path / name, "raw")
        assert not (tmp_path / name).exists()
    for wrong, kind in ((3, "int"), (None, "NoneType"), (b"x.gcf", "bytes")):
        with pytest.raises(TypeError, match=f"path is of type {kind}"):
            gcodec.save_file({}, wrong, "raw")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"path is of type {kind}"):
            gcodec.open(wrong)  # type: ignore[arg-type]
    assert not path.exists()


def test_errors_name_the_way_for_other_objects(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="save_file stores trees of arrays"):
        gcodec.encode({"a": array(1)}, "raw")
    with pytest.raises(TypeError, match="save_file stores trees of arrays"):
        gcodec.encode([array(1)], "raw")
    with pytest.raises(TypeError, match=r"; its arrays are in x\.state_dict\(\)"):
        gcodec.encode(torch.nn.Linear(2, 2), "raw")
    with pytest.raises(TypeError, match=r"; its arrays are in tree\.state_dict\(\)"):
        gcodec.save_file(torch.nn.Linear(2, 2), tmp_path / "x.gcf", "raw")
    frame = gcodec.Frame.from_bytes(gcodec.encode(array(1), "raw"))
    with pytest.raises(TypeError, match=r"^tree is of type Frame: must be an array"):
        gcodec.inspect(frame)
    with pytest.raises(TypeError, match=r"^tree: .a. is of type Frame: must be an array"):
        gcodec.save_file({"a": frame}, tmp_path / "x.gcf", "raw")
    with pytest.raises(TypeError, match="asarray"):
        gcodec.encode(1.5, "raw")
    for wrong in ("text", None):
        with pytest.raises(TypeError, match="x is"):
            gcodec.encode(wrong, "raw")


def test_sharded_tensors_of_torch_name_to_local() -> None:
    distributed = pytest.importorskip("torch.distributed")
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(TypeError, match=r"to_local\(\)"):
            gcodec.encode(distribute_tensor(torch.ones(4), mesh), "raw")
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{}", '{"tree":[]}', '{"version":1}', '{"version":true,"tree":[]}'),
        *('{"version":1.0,"tree":[]}', '{"version":1,"tree":[],"more":1}'),
        '{"version":1,"tree":{"dict":{"a":1,"a":2}}}',
        *(
            '{"version":1,"tree":{"pairs":[[1,2],[1,3]]}}',
            '{"version":1,"tree":{"pairs":[[1.5,2]]}}',
        ),
        *(
            '{"version":1,"tree":{"pairs":[[1,2],"ab"]}}',
            '{"version":1,"tree":{"pairs":[[1,2],[3,4,5]]}}',
            '{"version":1,"tree":{"pairs":[[1,2],[3]]}}',
        ),
        *('{"version":1,"tree":{"dict":{}, "tuple":[]}}', '{"version":1,"tree":{"float":"x"}}'),
        *(
            '{"version":1,"tree":NaN}',
            '{"version":1,"tree":1e999}',
            '{"version":1,"tree":"\\ud800"}',
        ),
        *('{"version":1,"tree":{"tensor":null}}', '{"version":1,"tree":18446744073709551616}'),
        '{"version":1,"tree":' + "9" * 5000 + "}",
        '{"version":1,"tree":' + "[" * 65 + "]" * 65 + "}",
        '{"version":1,"tree":' + "[" * 100_000,
    ],
)
def test_hostile_structures_are_refused(text: str) -> None:
    with pytest.raises(gcodec.Corrupt):
        structure.read(text.encode(), [])


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    numbers = [math.inf, -math.inf, math.nan, -0.0]
    gcodec.save_file({"x": array(1), "numbers": numbers}, tmp_path / "x.gcf", "raw")
    read = gcodec.load_file(tmp_path / "x.gcf")["numbers"]
    assert list(map(str, read)) == ["inf", "-inf", "nan", "-0.0"]


def test_structures_in_other_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gcodec.Unsupported, match="a node of the structure has the kind 'set'"):
        structure.read(b'{"version":1,"tree":{"set":[]}}', [])
    with pytest.raises(gcodec.Corrupt, match="the structure is not UTF-8 at its byte 21"):
        structure.read(b'{"version":1,"tree":"\xff"}', [])
    with pytest.raises(gcodec.Corrupt, match="the structure is not JSON at its character 21"):
        structure.read(b'{"version":1,"tree":[', [])
    for depth in (65, 100_000):
        with pytest.raises(gcodec.Corrupt, match="the structure is nested more than 64 deep"):
            structure.read(b'{"version":1,"tree":' + b"[" * depth + b"]" * depth + b"}", [])
    monkeypatch.setattr(structure, "MAX_NBYTES", 30)
    assert structure.read(structure.write([1, 23456]), []) == [1, 23456]
    with pytest.raises(gcodec.ParameterError, match="takes 31 bytes, and must take at most 30"):
        structure.write([1, 234567])
    with pytest.raises(gcodec.Corrupt, match="the structure has 31 bytes, more than 30"):
        structure.read(b'{"version":1,"tree":[1,234567]}', [])


def test_number_of_tensors_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = tmp_path / "x.gcf", {name: array(1) for name in "abc"}
    monkeypatch.setattr(files, "MAX_TENSORS", 2)
    with pytest.raises(gcodec.ParameterError, match="has 3 tensors, must have at most 2"):
        gcodec.save_file(tensors, path, "raw")
    assert not path.exists()
    monkeypatch.setattr(files, "MAX_TENSORS", 3)
    gcodec.save_file(tensors, path, "raw")
    monkeypatch.setattr(frame_file, "MAX_TENSORS", 2)
    with pytest.raises(gcodec.LimitExceeded, match="more than 2 tensors in one file"):
        gcodec.load_file(path)


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_other_versions_of_the_structure_are_unsupported(version: int) -> None:
    with pytest.raises(gcodec.Unsupported, match=f"version {version}"):
        structure.read(json.dumps({"version": version, "tree": []}).encode(), [])


def test_structures_must_agree_with_the_frames(tmp_path: Path) -> None:
    text = json.dumps({"version": 1, "tree": [{"tensor": None}]}).encode()
    first = gcodec.encode(np.frombuffer(text, np.uint8), "raw", name="\\structure")
    for frames in ([], ["1"], ["0", "1"]):
        data = b"".join(gcodec.encode(array(1), "raw", name=name) for name in frames)
        (tmp_path / "x.gcf").write_bytes(first + data)
        with pytest.raises(gcodec.Corrupt):
            gcodec.load_file(tmp_path / "x.gcf")
    wrong = gcodec.encode(array(1), "raw", name="\\structure")
    (tmp_path / "x.gcf").write_bytes(wrong)
    with pytest.raises(gcodec.Corrupt, match="uint8"):
        gcodec.load_file(tmp_path / "x.gcf")
    wrong = gcodec.encode(np.frombuffer(text, np.uint8)[None], "raw", name="\\structure")
    (tmp_path / "x.gcf").write_bytes(wrong + gcodec.encode(array(1), "raw", name="0"))
    with pytest.raises(gcodec.Corrupt, match="uint8 in one dimension"):
        gcodec.load_file(tmp_path / "x.gcf")
    packed = gcodec.encode(np.frombuffer(text, np.uint8), "lossless", name="\\structure")
    (tmp_path / "x.gcf").write_bytes(packed + gcodec.encode(array(1), "raw", name="0"))
    with pytest.raises(gcodec.Corrupt, match="codec raw"):
        gcodec.load_file(tmp_path / "x.gcf")
    for data in (b"", b"no frames"):
        (tmp_path / "x.gcf").write_bytes(data)
        with pytest.raises(gcodec.FormatError):
            gcodec.open(tmp_path / "x.gcf")


def test_names_of_frames(tmp_path: Path) -> None:
    """Only the first frame can be a structure, and frames without a name are numbered."""
    path = tmp_path / "x.gcf"

    def write(*names: str | None) -> None:
        path.write_bytes(b"".join(gcodec.encode(array(1), "raw", name=name) for name in names))

    write(None, "a", None, "\\structure")
    with gcodec.open(path) as file:
        assert file.names() == ["tensor0", "a", "tensor1", "\\structure"]
    for names in (("a", "a"), (None, "tensor0")):
        write(*names)
        with pytest.raises(gcodec.Unsupported, match=f"two frames are named {names[1]!r}"):
            gcodec.load_file(path)


def test_frames_of_paths_and_open_files(tmp_path: Path) -> None:
    path = tmp_path / "x.gcf"
    gcodec.save_file({"a": array(1), "b": array(2)}, path, "raw")
    data = path.read_bytes()
    with path.open("rb") as file:
        file.seek(len(data) // 2)
        assert [frame.name for frame in gcodec.iter_frames(file)] == ["b"]
    with gzip.open(tmp_path / "x.gz", "wb") as file:
        file.write(data)
    with gzip.open(tmp_path / "x.gz") as file:
        assert [frame.name for frame in gcodec.iter_frames(file)] == ["a", "b"]
    for source in (path, str(path), io.BytesIO(data), data):
        assert [frame.decode().item() for frame in gcodec.iter_frames(source)] == [1, 2]
    with path.open() as text, pytest.raises(TypeError, match="open for text"):
        list(gcodec.iter_frames(text))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        list(gcodec.iter_frames(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [b"", b"GC", b"GCF"])
def test_endless_streams_are_read_only_after_the_bytes_of_a_frame(start: bytes) -> None:
    class Endless(io.RawIOBase):
        taken = 0

        def read(self, nbytes: int = -1, /) -> bytes:
            assert nbytes > 0, "reads to the end"
            self.taken += nbytes
            assert self.taken < 1 << 22, "reads on"
            return (start[self.taken - nbytes : self.taken]).ljust(nbytes, b"y")

    stream = Endless()
    refused = AssertionError if start == b"GCF" else gcodec.Corrupt  # no end that it could reach
    with pytest.raises(refused, match=r"reads on|begin with GCF"):
        list(gcodec.iter_frames(stream))
    assert (stream.taken > 3) == (start == b"GCF")


def test_streams_that_do_not_wait_have_no_end_there() -> None:
    """Frames that arrive later must not be left out without an error."""

    class Slow(io.RawIOBase):
        chunks = iter([gcodec.encode(array(1), "raw"), None])

        def read(self, nbytes: int = -1, /) -> bytes | None:
            return next(self.chunks)

    with pytest.raises(BlockingIOError, match="the stream is non-blocking, and has no bytes yet"):
        list(gcodec.iter_frames(Slow()))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_named_pipes_are_read(tmp_path: Path) -> None:
    pipe, tree = tmp_path / "pipe", {"a": array(1), "b": array(2)}
    gcodec.save_file(tree, tmp_path / "x.gcf", "raw")
    os.mkfifo(pipe)

    def names_in_file() -> list[str]:
        with gcodec.open(pipe) as file:
            return file.names()

    readers: list[Callable[[], Iterable[str | None]]] = [
        lambda: gcodec.load_file(pipe),
        lambda: [frame.name for frame in gcodec.iter_frames(pipe)],
        names_in_file,
    ]
    with ThreadPoolExecutor(1) as pool:
        for read in readers:
            writing = pool.submit(pipe.write_bytes, (tmp_path / "x.gcf").read_bytes())
            assert list(read()) == ["a", "b"]
            writing.result()


def test_the_command_reads_trees_and_streams(tmp_path: Path) -> None:
    path = tmp_path / "x.gcf"
    tree = {"fc": [np.arange(9, dtype=np.float32), 5]}
    gcodec.save_file(tree, path, "raw")
    for verb in ("inspect", "verify", "dissect"):
        run(verb, path)
    run("decode", path, "-o", tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["fc.0"].tolist() == tree["fc"][0].tolist()
    encoded = run("encode", "-", "-o", "-", "-c", "sign", "-q", input=EXAMPLE.read_bytes())
    assert "fc.weight" in run("inspect", "-", input=encoded.stdout_bytes).stdout
    run("inspect", "-", input=b"nothing known", code=3)


def test_misspelled_words_get_a_suggestion() -> None:
    with pytest.raises(gcodec.ParameterError, match="did you mean ecsq"):
        gcodec.parse("ecqs")
    with pytest.raises(gcodec.ParameterError, match="did you mean nmse"):
        gcodec.parse("ecsq:nsme=0.1")
    for text, hint in (
        ("TOPK", "did you mean topk?"),
        ("qsgd:S=15", "did you mean s?"),
        ("topk,ratio=0.1", "write topk:ratio=0.1"),
        ("topk ratio=0.1, value=int8", "write topk:ratio=0.1,value=int8"),
        ("sign,topk", "a spec has one name"),
        ("auto:nmse=0.01", "gcodec.choose picks one for a tensor, and gcodec encode for each"),
        ("MXFP4", "write microscale:format=mxfp4"),
        ("int8", "gcodec codecs --like int8 lists formats of other systems"),
    ):
        with pytest.raises(gcodec.ParameterError) as caught:
            gcodec.parse(text)
        assert str(caught.value).endswith(f"; {hint}")
    for text in ("", "x", "zstd"):  # no name of another system
        with pytest.raises(gcodec.ParameterError, match=r"one of [^;]*$"):
            gcodec.parse(text)
    with pytest.raises(gcodec.ParameterError, match=r"must be name:key=.*, with one bucket$"):
        gcodec.parse("qsgd:bucket=512,bucket=256")
    with pytest.raises(gcodec.ParameterError, match=r"; gcodec.Policy takes a mapping of globs"):
        gcodec.encode(np.ones(3, np.float32), {"*.bias": "raw"})
    with pytest.raises(gcodec.ParameterError, match=r"must be name:key=.* without spaces$"):
        gcodec.parse("topk:ratio=0.01, value=int8")
    assert "inspect" in run("inspcet", "x", code=2).stderr
    assert "did you mean --help?" in run("help", code=2).stderr
