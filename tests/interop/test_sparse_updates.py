"""Sparse updates of TRL, NeMo-RL and grail: layouts, bits, frames, and damaged objects."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gcodec
from gcodec import Corrupt, FormatError, ParameterError, Unsupported
from gcodec.interop import changes, grail, nemo_rl, trl

BF16 = np.dtype(ml_dtypes.bfloat16)
GRAIL = Path(__file__).parents[1] / "golden" / "upstream" / "grail-54d6342.txt"


def tensors(dtype: Any = BF16) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return old and new tensors with gaps of all widths, in a row, and without changes."""
    rng = np.random.default_rng(1)
    shapes = {"few": (60, 50), "far": (300, 250), "row": (40,), "same": (9,), "empty": (0, 3)}
    old = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    new = {name: x.copy() for name, x in old.items()}
    bits = {name: x.reshape(-1).view(f"u{x.dtype.itemsize}") for name, x in new.items()}
    bits["few"][rng.random(3000) < 0.05] ^= 1
    bits["far"][[3, 70_000]] += 5
    bits["row"][7:12] ^= 3
    return old, new


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, x in actual.items():
        assert x.dtype == expected[name].dtype and x.shape == expected[name].shape
        assert x.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("index", ["gap", "raw"])
def test_trl(index: Any) -> None:
    old, new = tensors()
    update = trl.encode(new, old, index=index)
    assert {*update} == {
        f"{name}.{part}" for name in ("few", "far", "row") for part in ("val", "idx")
    }
    kinds = {name: update[f"{name}.idx"].dtype.name for name in ("few", "far", "row")}
    if index == "raw":
        assert {*kinds.values()} == {"int32"}
        assert update["row.idx"].tolist() == [7, 8, 9, 10, 11]
    else:
        assert kinds == {"few": "uint16", "far": "uint32", "row": "uint16"}
        assert update["row.idx"].tolist() == [7, 0, 0, 0, 0]
        assert update["far.idx"].tolist() == [3, 69_996]
    assert update["row.val"].dtype == BF16
    decoded = trl.decode(update, old)
    assert {*decoded} == {"few", "far", "row"}
    assert_same(decoded, new)
    frames = trl.to_frame(update, old)
    assert [frame.name for frame in gcodec.iter_frames(frames)] == ["few", "far", "row"]
    assert len(frames) < sum(part.nbytes for part in update.values())
    again = trl.from_frame(frames, old, index=index)
    assert {name: part.tobytes() for name, part in again.items()} == {
        name: part.tobytes() for name, part in update.items()
    }


@pytest.mark.parametrize("operation", ["xor", "overwrite"])
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float64, np.float16])
def test_nemo_rl(dtype: Any, operation: Any) -> None:
    old, new = tensors(dtype)
    old["counts"] = np.arange(7, dtype=np.uint8)
    new["counts"] = old["counts"] ^ np.uint8(0x80)
    update = nemo_rl.encode(new, old, operation=operation)
    assert [item["name"] for item in update.metadata] == ["few", "far", "row", "counts"]
    encodings = [item["index_encoding"] for item in update.metadata]
    assert encodings == ["deltas", "deltas", "range", "range"]
    far = update.metadata[1]
    assert (
        update.locations[far["index_start"] : far["index_end"]].tobytes()
        == np.array([3, 69_996], np.uint32).tobytes()
    )
    size = np.dtype(dtype).itemsize
    assert [part.dtype.name for part in update.values] == [f"int{8 * size}", "uint8"]
    values = update.values[1].tolist()
    assert values == ([128] * 7 if operation == "xor" else new["counts"].tolist())
    decoded = nemo_rl.decode(update, old)
    assert {*decoded} == {"few", "far", "row", "counts"}
    assert_same(decoded, new)
    frames = nemo_rl.to_frame(update, old)
    again = nemo_rl.from_frame(frames, old, operation=operation)
    assert again.metadata == update.metadata
    assert again.locations.tobytes() == update.locations.tobytes()
    assert all((a == b).all() for a, b in zip(again.values, update.values, strict=True))


def recorded_by_grail() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[int, bytes]]:
    """Return old and new tensors, and the update of each version."""
    old, new, updates = {}, {}, {}
    for line in GRAIL.read_text("ascii").replace("\n  ", "").splitlines():
        kind, name, *rest = line.split()
        if kind == "update":
            updates[int(name)] = bytes.fromhex(rest[0])
        if kind == "tensor":
            dtype = BF16 if rest[0] == "bfloat16" else np.dtype(rest[0])
            shape = tuple(map(int, rest[1].split("x")))
            bits = np.zeros(math.prod(shape), f"i{dtype.itemsize}")
            old[name] = bits.view(dtype).reshape(shape).copy()
            for change in rest[2:]:
                at, value = map(int, change.split(":"))
                bits[at] = value
            new[name] = bits.view(dtype).reshape(shape)
    return old, new, updates


@pytest.mark.parametrize("version", [2, 3, 31])
def test_recordings_of_grail(version: Any) -> None:
    old, new, updates = recorded_by_grail()
    update = updates[version]
    assert grail.encode(new, old, version=version) == update
    assert grail.encode(new, old, version=version, compare="bits") == update
    decoded = grail.decode(update, old)
    assert [*decoded] == ["filters", "layers.0.bias", "layers.0.weight", "tall", "wide"]
    assert_same(decoded, new)
    frames = grail.to_frame(update, old)
    assert [frame.name for frame in gcodec.iter_frames(frames)] == [*decoded]
    assert grail.from_frame(frames, old, version=version) == update


@pytest.mark.parametrize("version", [2, 3, 31])
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16])
def test_grail(dtype: Any, version: Any) -> None:
    old, new = tensors(dtype)
    update = grail.encode(new, old, version=version)
    assert_same(grail.decode(update, old), new)
    assert len(grail.decode(memoryview(update), old)) == 3


def test_grail_compares_numbers() -> None:
    old = {"w": np.array([0, np.nan, 1], BF16)}
    new = {"w": np.array([-0.0, np.nan, 1], BF16)}
    values = grail.decode(grail.encode(new, old), old)["w"]
    assert np.isnan(values[1]) and not np.signbit(values[0])
    exact = grail.encode(new, old, compare="bits")
    assert_same(grail.decode(exact, old), new)
    assert grail.from_frame(grail.to_frame(exact, old), old) == exact
    nothing = grail.encode({"w": new["w"][:1]}, {"w": old["w"][:1]})
    assert grail.decode(nothing, {}) == {} and b'"tensors":[]' in nothing


def test_nothing_changes() -> None:
    old, _ = tensors()
    assert trl.encode(old, old) == {} and trl.decode({}, old) == {}
    update = nemo_rl.encode(old, old)
    assert update.metadata == [] and nemo_rl.decode(update, old) == {}
    assert trl.to_frame({}, old) == nemo_rl.to_frame(update, old) == b""
    assert trl.from_frame(b"", old) == {}


def test_bits_are_compared() -> None:
    old = {"w": np.array([0, np.nan, 1], BF16)}
    new = {"w": np.array([-0.0, np.nan, 1], BF16)}
    assert trl.encode(new, old)["w.idx"].tolist() == [0]
    assert nemo_rl.encode(new, old).metadata[0]["range_start"] == 0


def test_arguments() -> None:
    old, new = tensors()
    for module in (trl, nemo_rl, grail):
        with pytest.raises(ParameterError, match=r"^base: has no tensor '(few|empty)'"):
            module.encode(new, {})
        with pytest.raises(ParameterError, match=r"^base\['few'\] is bfloat16 of \(50, 60\)"):
            module.encode(new, {**old, "few": old["few"].T})
        with pytest.raises(ParameterError, match=r"^base: has no tensor"):
            module.decode(module.encode(new, old), {})
        with pytest.raises(ParameterError, match=r"^base: has no tensor"):
            module.from_frame(module.to_frame(module.encode(new, old), old), {})
        with pytest.raises(ParameterError, match=r"base has the digest"):
            module.from_frame(module.to_frame(module.encode(new, old), old), new)
        with pytest.raises(FormatError):
            module.from_frame(gcodec.encode(old["few"], "raw", name="few"), old)
        with pytest.raises(FormatError):
            module.from_frame(gcodec.encode_patch(new["few"], old["few"]), old)
    options: dict[str, Any] = {"index": "rows"}
    with pytest.raises(ParameterError, match=r"^index="):
        trl.encode(new, old, **options)
    options = {"operation": "add"}
    with pytest.raises(ParameterError, match=r"^operation="):
        nemo_rl.encode(new, old, **options)
    for options in ({"version": 1}, {"compare": "bytes"}):
        with pytest.raises(ParameterError, match=rf"^{next(iter(options))}="):
            grail.encode(new, old, **options)
    with pytest.raises(ParameterError, match=r"must be .* of shape"):
        grail.decode(grail.encode(new, old), {**old, "few": old["few"].view(np.uint16)})
    with pytest.raises(TypeError, match="takes bfloat16, float16, float32"):
        grail.encode({"w": np.ones(3)}, {"w": np.zeros(3)})
    with pytest.raises(ParameterError, match="dimension"):
        grail.encode({"w": np.float32(1)}, {"w": np.float32(2)})
    with pytest.raises(TypeError, match="bytes-like"):
        grail.decode("update", old)  # type: ignore[arg-type]
    for module in (trl, nemo_rl, grail):
        for names in ([3], ["few", 3]):
            with pytest.raises(TypeError, match=r"^new has the key 3: must be a str"):
                module.encode({name: new["few"] for name in names}, {})  # type: ignore[misc]
    wide = {"w": np.ones(3, np.float32)}
    with pytest.raises(TypeError, match="takes bfloat16"):
        trl.encode({"w": 2 * wide["w"]}, wide)
    with pytest.raises(TypeError, match="takes bfloat16"):
        trl.decode({"w.val": np.ones(1, BF16), "w.idx": np.zeros(1, np.uint16)}, wide)
    with pytest.raises(ParameterError, match="must be bfloat16"):
        nemo_rl.decode(nemo_rl.encode(new, old), {**old, "few": old["few"].view(np.uint16)})


def test_damaged_updates_of_trl() -> None:
    old, new = tensors()
    update = trl.encode(new, old)
    wrong: list[dict[str, Any]] = [
        {"few.val": update["few.val"]},
        {**update, "other": update["few.val"]},
        {**update, "few.val": update["few.val"][1:]},
        {**update, "few.val": update["few.val"].view(np.uint16)},
        {**update, "few.idx": update["few.idx"].astype(np.int64)},
        {**update, "row.idx": np.array([7, 0, 0, 0, 29], np.uint16)},
        {**update, "row.idx": np.array([2**32 - 1, 0, 0, 0, 0], np.uint32)},
        {**update, "row.idx": np.array([1, 2, 2, 3, 4], np.int32)},
        {**update, "row.idx": np.array([-1, 2, 3, 4, 5], np.int32)},
        {**update, "row.idx": np.array([1, 2, 3, 4, 40], np.int32)},
    ]
    for each in wrong:
        with pytest.raises(FormatError):
            trl.decode(each, old)


def test_damaged_updates_of_nemo_rl() -> None:
    old, new = tensors()
    update = nemo_rl.encode(new, old)
    few, _, row = range(3)
    changes: list[tuple[int, str, Any]] = [
        *((few, name, value) for name in nemo_rl._NUMBERS for value in (-1, 1, 10**7, "x", None)),
        (few, "operation", "add"),
        (few, "index_encoding", "rows"),
        (few, "name", "row"),
        (row, "range_start", -1),
        (row, "range_start", 36),
        (row, "shape", 5),
        (row, "shape", [10**5000]),
        (row, "range_start", 10**5000),
        (few, "value_end", 10**5000),
    ]
    for which, name, value in changes:
        metadata = copy.deepcopy(update.metadata)
        if metadata[which][name] == value:
            continue
        metadata[which][name] = value
        with pytest.raises((FormatError, ParameterError)):
            nemo_rl.decode(update._replace(metadata=metadata), old)
    for name in update.metadata[few]:
        metadata = copy.deepcopy(update.metadata)
        del metadata[few][name]
        with pytest.raises(FormatError):
            nemo_rl.decode(update._replace(metadata=metadata), old)
    for damaged in (
        update._replace(locations=update.locations[:-4]),
        update._replace(locations=update.locations.view(np.uint16)),
        update._replace(locations=np.full_like(update.locations, 255)),
        update._replace(values=()),
        update._replace(values=(update.values[0][:-1],)),
        update._replace(values=(update.values[0].view(np.uint16),)),
        (1, 2),
        (update.locations, update.values, [3]),
    ):
        with pytest.raises(FormatError):
            nemo_rl.decode(damaged, old)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [float, str, lambda size: np.ma.masked, lambda size: np.ma.masked_array(size, mask=True)],
    ids=["float", "text", "masked", "masked array"],
)
def test_sizes_of_nemo_rl_are_integers(change: Callable[[int], Any]) -> None:
    base = {"w": np.zeros(4, np.float32)}
    update = nemo_rl.encode({"w": np.array([0, 0, 1, 0], np.float32)}, base)
    (item,) = update.metadata
    changed = {name: change(item[name]) for name in (*nemo_rl._NUMBERS, "range_start")}
    changed["shape"] = tuple(map(change, item["shape"]))
    for name, value in changed.items():
        with pytest.raises(Corrupt, match="form of NeMo-RL"):
            nemo_rl.decode(update._replace(metadata=[item | {name: value}]), base)


@pytest.mark.parametrize("field", ["operation", "index_encoding"])
def test_unknown_forms_of_nemo_rl_are_unsupported(field: str) -> None:
    old, new = tensors()
    update = nemo_rl.encode(new, old)
    update.metadata[0][field] = "unknown"
    with pytest.raises(Unsupported, match="'unknown'"):
        nemo_rl.decode(update, old)


def test_positions_cannot_wrap_around() -> None:
    """Differences of int32 positions, and products of int64 rows and columns, can overflow."""
    base = {"w": np.zeros(4, BF16)}
    positions = np.array([0, 2**31 - 1, -(2**31), -1, 3], np.int32)
    with pytest.raises(Corrupt):
        trl.decode({"w.val": np.ones(5, BF16), "w.idx": positions}, base)
    columns = 1 << 20
    rows = np.array([0, *[2**31 - 1] * 8192, 8192], "<i4")
    assert int(rows.sum(dtype=np.int64)) * columns == 2**64
    count = rows.size
    item = {"name": "w", "shape": [1, columns], "num_nonzero": count, "value_dtype": "float32"}
    item |= {"indices_offset": 0, "indices_size": 8 * count, "rows_size": 4 * count}
    item |= {"cols_size": 4 * count, "values_offset": 8 * count, "values_size": 4 * count}
    header = json.dumps({"version": 3, "tensors": [item]}).encode()
    places = np.zeros(count, "<i4")
    places[-1] = 5
    parts = len(header).to_bytes(4, "little"), header, rows, places, np.ones(count, "<f4")
    with pytest.raises(Corrupt):
        grail.decode(b"".join(map(bytes, parts)), {"w": np.zeros((1, columns), np.float32)})


@pytest.mark.parametrize("version", [2, 3, 31])
def test_grail_refuses_positions_beyond_int32(
    version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grail adds up distances to int32 positions; the tensor is only described here."""
    tensor = changes.Pattern(np.zeros(1, np.uint16), "bfloat16", (2**32,))
    changed = changes.Changed("w", np.array([2**31 - 10, 2**31 + 5]), tensor, tensor)
    monkeypatch.setattr(grail, "changes_of", lambda *arguments: iter([changed]))
    with pytest.raises(ParameterError, match=r"new\['w'\]\.shape.*int32"):
        grail.encode({}, {}, version=version)


@pytest.mark.parametrize("module", [trl, nemo_rl, grail])
def test_tensors_of_torch(module: Any) -> None:
    torch = pytest.importorskip("torch")
    old, new = tensors()
    base, changed = (
        {name: torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for name, x in each.items()}
        for each in (old, new)
    )
    update = module.encode(changed, base)
    assert_same(module.decode(update, base), new)
    frames = module.to_frame(update, base)
    assert frames == module.to_frame(update, old)
    assert_same(module.decode(module.from_frame(frames, base), base), new)


def test_trl_reads_tensors_and_other_byte_orders() -> None:
    torch = pytest.importorskip("torch")
    base = {"w": np.zeros(4, BF16)}
    values = np.array([1, 2], BF16)
    swapped = {"w.val": values, "w.idx": np.array([1, 3], ">i4")}
    of_torch = {"w.val": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)}
    of_torch["w.idx"] = torch.tensor([1, 3], dtype=torch.int32)
    for update in (swapped, of_torch):
        assert trl.decode(update, base)["w"].tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("version", [2, 3, 31])
def test_damaged_updates_of_grail(version: Any) -> None:
    old, new = tensors()
    update = grail.encode(new, old, version=version)
    length = int.from_bytes(update[:4], "little")
    header, data = json.loads(update[4 : 4 + length]), update[4 + length :]

    def joined(changed: Any) -> bytes:
        text = json.dumps(changed).encode()
        return len(text).to_bytes(4, "little") + text + data

    assert_same(grail.decode(joined(header), old), new)
    damaged = [update[:n] for n in (0, 3, 4, 4 + length, len(update) - 1)]
    damaged += [update + b"\0", update[:4] + b"x" + update[5:], joined([]), joined({})]
    damaged += [joined({**header, "version": v}) for v in (0, 5 - version, "2", None)]
    damaged += [joined({**header, "tensors": t}) for t in (None, [3], header["tensors"] * 2)]
    damaged += [update[:4] + b"[" * length + data]
    for at, item in enumerate(header["tensors"]):
        for key in item:
            for value in (-1, 0, 10**30, "other", None, [], True):
                if value == item[key]:
                    continue
                items = [*header["tensors"]]
                items[at] = {**item, key: value}
                damaged.append(joined({**header, "tensors": items}))
            items = [*header["tensors"]]
            items[at] = {k: v for k, v in item.items() if k != key}
            damaged.append(joined({**header, "tensors": items}))
    for one in damaged:
        with pytest.raises((FormatError, ParameterError)):
            grail.decode(one, old)
    rng = np.random.default_rng(4)
    for _ in range(200):  # positions outside of a tensor, or not in order, are refused
        flipped = bytearray(update)
        flipped[4 + length + int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        try:
            decoded = grail.decode(flipped, old)
        except FormatError:
            continue
        assert {*decoded} == {"few", "far", "row"}


def test_grail_refuses_sizes_of_thousands_of_digits() -> None:
    """Python reads integers of 4300 digits and refuses to print their sum, which has more."""
    count = 125 * 10**4297
    sizes = {"num_nonzero": count, "indices_size": 4 * count, "values_size": 4 * count}
    places = {"indices_offset": 0, "values_offset": 4 * count}
    item = {"name": "w", "shape": [1], "value_dtype": "float32", **sizes, **places}
    header = json.dumps({"version": 2, "tensors": [item]}).encode()
    with pytest.raises(FormatError):
        grail.decode(len(header).to_bytes(4, "little") + header, {"w": np.zeros(1, np.float32)})
