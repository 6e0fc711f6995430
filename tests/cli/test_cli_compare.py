"""`gcodec compare`, and the differences between tensors."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import command_line
import ml_dtypes
import numpy as np
import pytest
from example_files import DUMP as EXAMPLE

import gcodec
from gcodec.analysis.compare import difference, together, unequal
from gcodec.tensorfiles.dumps import open_dump, write_dump

run = partial(command_line.run, "compare")
document = partial(command_line.json_of, "compare")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def npz(path: Path, **tensors: np.ndarray) -> Path:
    write_dump(path, tensors.items())
    return path


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Return the example dump as a file of frames."""
    path = tmp_path / "example.gcf"
    with open_dump(EXAMPLE) as dump, path.open("wb") as file:
        for entry in dump.entries:
            file.write(gcodec.encode(dump.load(entry), "minmax:bits=4", name=entry.name))
    return path


def test_stdin_is_either_file(frames: Path) -> None:
    expected = document(EXAMPLE, frames)
    from_dump = json.loads(run("-", frames, "--json", input=EXAMPLE.read_bytes()).stdout)
    from_frames = json.loads(run(EXAMPLE, "-", "--json", input=frames.read_bytes()).stdout)
    assert (from_dump["a"], from_frames["b"]) == ("-", "-")
    for key in ("tensors", "total", "left_out"):
        assert from_dump[key] == from_frames[key] == expected[key]
    shown = run(EXAMPLE, "-", input=frames.read_bytes()).stdout
    assert shown.splitlines()[1:] == run(EXAMPLE, frames).stdout.splitlines()[1:]
    failed = run(EXAMPLE, "-", "--max-nmse", "1e-9", input=frames.read_bytes(), code=1)
    assert failed.stderr.startswith("gcodec: -: ")


def test_stdin_is_not_both_files() -> None:
    refused = run("-", "-", input=EXAMPLE.read_bytes(), code=2)
    assert refused.stderr == "gcodec: -: stdin must be A or B, not both\n"
    damaged = run(EXAMPLE, "-", input=b"no tensors", code=3)
    assert damaged.stderr.startswith("gcodec: -: the bytes begin like no .safetensors")
    empty = run(EXAMPLE, "-", input=b"", code=3)
    assert empty.stderr == "gcodec: -: the file is empty (at byte 0)\n"


def test_dump_against_its_frames(frames: Path) -> None:
    comparison = document(EXAMPLE, frames)
    decoded = {f.name: f.decode() for f in gcodec.iter_frames(frames.read_bytes())}
    errors, squares, products, decoded_squares = [], [], [], []
    with open_dump(EXAMPLE) as dump:
        for entry, row in zip(dump.entries, comparison["tensors"], strict=True):
            x = dump.load(entry).astype(np.float64)
            y = decoded[entry.name].astype(np.float64)
            error = ((y - x) ** 2).sum()
            assert row["name"] == entry.name and row["passes"]
            assert row["nmse"] == pytest.approx(error / (x**2).sum(), rel=1e-12)
            cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
            assert row["cosine"] == pytest.approx(cosine, rel=1e-12)
            assert row["max_difference"] == row["max_error"] == np.abs(y - x).max()
            agree = (np.sign(x) == np.sign(y))[x != 0].mean()
            assert row["sign_agreement"] == pytest.approx(agree, rel=1e-15)
            errors.append(error)
            squares.append((x**2).sum())
            products.append((x * y).sum())
            decoded_squares.append((y**2).sum())
    total = comparison["total"]
    assert total["values"] == 77_754
    assert total["nmse"] == pytest.approx(sum(errors) / sum(squares), rel=1e-12)
    cosine = sum(products) / math.sqrt(sum(squares) * sum(decoded_squares))
    assert total["cosine"] == pytest.approx(cosine, rel=1e-12)


def test_bound_applies_to_each_tensor(frames: Path) -> None:
    errors = [row["nmse"] for row in document(EXAMPLE, frames)["tensors"]]
    worst = max(errors)
    assert run(EXAMPLE, frames, "--max-nmse", worst).stderr == ""
    result = run(EXAMPLE, frames, "--max-nmse", np.nextafter(worst, 0), code=1)
    assert "1 tensor above --max-nmse" in result.stderr
    comparison = document(EXAMPLE, frames, "--max-nmse", sorted(errors)[-3], code=1)
    assert sum(not row["passes"] for row in comparison["tensors"]) == 2
    assert "2 tensors above" in comparison["errors"][0]["message"]
    run(frames, frames, "--max-nmse", "0")
    run(EXAMPLE, EXAMPLE, "--max-nmse", "0")
    assert document(EXAMPLE, frames, "--max-err", worst, "--sort", "err")["max_nmse"] == worst


def test_rows_are_selected_and_sorted(frames: Path) -> None:
    comparison = document(EXAMPLE, frames, "-L", "*.bias", "--sort", "nmse")["tensors"]
    assert len(comparison) == 10 and all(row["name"].endswith(".bias") for row in comparison)
    assert [row["nmse"] for row in comparison] == sorted(
        (r["nmse"] for r in comparison), reverse=True
    )
    names = [row["name"] for row in document(EXAMPLE, frames, "--sort", "name")["tensors"]]
    assert names == sorted(names)
    sizes = [row["values"] for row in document(EXAMPLE, frames, "--sort", "size")["tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    lines = run(EXAMPLE, frames, "--top", "2", "--sort", "size").stdout.splitlines()
    assert len(lines) == 6 and lines[-2].startswith("(27 more)") and "77,754" in lines[-1]
    assert "no tensor matches" in run(EXAMPLE, frames, "-L", "none", code=2).stderr


def test_unmatched_tensors_fail(tmp_path: Path) -> None:
    x = normal(3, 4)
    a = npz(tmp_path / "a.npz", x=x, only=x, turned=x, wave=np.ones(3, np.complex64))
    b = npz(tmp_path / "b.npz", x=-x, turned=x.T, new=x)
    comparison = document(a, b, code=1)
    rows = {row["name"]: row for row in comparison["tensors"]}
    assert rows["only"]["problem"] == "only in A" and rows["only"]["b"] is None
    assert rows["new"]["problem"] == "only in B" and rows["new"]["a"] is None
    assert rows["turned"]["problem"] == "another shape"
    assert rows["turned"]["b"]["shape"] == [4, 3]
    assert rows["x"]["nmse"] == pytest.approx(4) and rows["x"]["cosine"] == -1
    assert rows["x"]["sign_agreement"] == 0
    assert comparison["left_out"] == ["wave"] and comparison["total"]["values"] == 12
    assert "'only': only in A, and 2 more that do not match" in comparison["errors"][0]["message"]
    result = run(a, b, code=1)
    assert (
        "3x4 : 4x3" in result.stdout
        and "skipped, as no frame can store them: wave" in result.stderr
    )
    run(a, b, "-L", "x")


def test_lone_tensors_match_regardless_of_names(tmp_path: Path) -> None:
    x = normal(5)
    a = npz(tmp_path / "a.npz", x=x)
    b = tmp_path / "b.gcf"
    b.write_bytes(gcodec.encode(x, "raw"))
    assert document(a, b)["tensors"][0]["nmse"] == 0
    b.write_bytes(gcodec.encode(x, "raw") + gcodec.encode(x, "raw"))
    names = [row["name"] for row in document(a, b, code=1)["tensors"]]
    assert names == ["x", "tensor0", "tensor1"]


def test_dtypes_may_differ(tmp_path: Path) -> None:
    x = normal(100)
    a = npz(tmp_path / "a.npz", x=x.astype(np.float64), y=x, z=x)
    half, brain = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)
    b = tmp_path / "b.safetensors"
    write_dump(b, {"x": x, "y": half, "z": brain}.items())
    rows = document(a, b)["tensors"]
    assert rows[0]["nmse"] == 0 and rows[1]["b"]["dtype"] == "float16"
    assert 0 < rows[1]["nmse"] < 1e-6 < rows[2]["nmse"] < 1e-4
    assert "float32 : bfloat16" in run(a, b).stdout


def test_integers_must_be_equal(tmp_path: Path) -> None:
    steps, mask, x = np.array([2**62, 2**62 + 1, -1]), np.array([True, False]), normal(4)
    a = npz(tmp_path / "a.npz", steps=steps, mask=mask, x=x)
    b = tmp_path / "b.gcf"
    b.write_bytes(
        b"".join(gcodec.encode(t, "raw", name=n) for n, t in dict(steps=steps, mask=mask).items())
        + gcodec.encode(x, "minmax", name="x")
    )
    comparison = document(a, b)
    rows = {row["name"]: row for row in comparison["tensors"]}
    assert rows["steps"] == {
        "name": "steps",
        "a": {"dtype": "int64", "shape": [3]},
        "b": {"dtype": "int64", "shape": [3]},
        "passes": True,
        "values": 3,
        "unequal": 0,
    }
    assert comparison["integers"] == {"tensors": 2, "unequal": 0} and comparison["left_out"] == []
    assert comparison["total"]["values"] == 4  # errors count floats only
    assert run(a, b).stdout.count("equal") == 2
    # A difference of 1 in 2^62 counts, although float64 cannot represent it.
    c = npz(tmp_path / "c.npz", steps=steps + np.array([0, 1, 0]), mask=~mask, x=x)
    comparison = document(a, c, code=1)
    rows = {row["name"]: row for row in comparison["tensors"]}
    assert rows["steps"]["unequal"] == 1 and not rows["steps"]["passes"]
    assert rows["mask"]["unequal"] == 2 and rows["x"]["passes"]
    assert comparison["integers"] == {"tensors": 2, "unequal": 2}
    message = "'steps' is int64: 1 of 3 values differ, and 1 more that differ"
    assert comparison["errors"][0]["message"] == message
    result = run(a, c, "--sort", "nmse", code=1)
    assert "1 differ" in result.stdout and "2 differ" in result.stdout
    # Values count, not widths; a missing tensor and one of floats do not match.
    d = npz(tmp_path / "d.npz", steps=steps.astype(object).astype(np.int64), mask=mask * 1.0)
    comparison = document(a, d, "-L", "steps", "-L", "mask", code=1)
    problems = [row.get("problem") for row in comparison["tensors"]]
    assert problems == [None, "another dtype"]
    e = npz(tmp_path / "e.npz", x=x)
    assert document(a, e, code=1)["tensors"][0]["problem"] == "only in A"


def test_unreadable_files(frames: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gcf"
    cut.write_bytes(frames.read_bytes()[:-1])
    assert "frame 28" in run(EXAMPLE, cut, code=1).stderr
    data = bytearray(frames.read_bytes())
    data[-1] ^= 1  # the checksum of the last payload
    cut.write_bytes(data)
    comparison = document(EXAMPLE, cut, code=1)
    assert [row.get("problem") for row in comparison["tensors"]].count("unreadable") == 1
    assert "payload's checksum" in comparison["errors"][0]["message"]
    cut.write_bytes(b"")
    assert "empty" in run(EXAMPLE, cut, code=1).stderr
    cut.write_bytes(gcodec.encode(normal(2), "raw", name="w") * 2)
    assert "two frames are named 'w'" in run(EXAMPLE, cut, code=3).stderr
    assert "no such file" in run(EXAMPLE, tmp_path / "none.npz", code=2).stderr
    assert run(EXAMPLE, frames, "--max-elems", "1000", code=4)
    assert document(EXAMPLE, tmp_path / "cut.gcf", code=3)["total"] is None


def test_nothing_to_compare_is_no_success(tmp_path: Path) -> None:
    a, b = (tmp_path / f"{name}.npy" for name in "ab")
    np.save(a, np.ones(3, np.complex64))
    np.save(b, np.zeros(3, np.complex128))
    stderr = run(a, b, "-q", code=2).stderr
    assert stderr == "gcodec: no tensor can be compared: frames store no complex128, complex64\n"


def test_bytes_of_tensors_that_frames_lack_are_nothing_to_compare(tmp_path: Path) -> None:
    """A file of lossless frames contains them as uint8, also one whose bytes differ."""
    x = np.ones(3, np.complex64)
    a, b = npz(tmp_path / "a.npz", wave=x), npz(tmp_path / "b.npz", wave=(2 * x).view(np.uint8))
    for pair in ((a, b), (b, a)):
        stderr = run(*pair, "--max-nmse", "0", code=2).stderr
        assert stderr == "gcodec: no tensor can be compared: frames store no complex64\n"


def test_each_side_is_one_file(tmp_path: Path) -> None:
    """Of several files, the first one must not stand for all."""
    a, b = (npz(tmp_path / f"{name}.npz", x=normal(5)) for name in "ab")
    for pattern in (tmp_path, tmp_path / "*.npz"):
        message = f"{pattern}: must be one dump or .gcf file"
        assert message in run(a, pattern, code=2).stderr
        assert message in run(pattern, a, code=2).stderr
    assert document(tmp_path / "b.*", b)["tensors"][0]["passes"]


def test_names_are_escaped(tmp_path: Path) -> None:
    name = "[red]x[/red]\x1b[31m\n"
    a = tmp_path / "a.gcf"
    a.write_bytes(b"".join(gcodec.encode(normal(2), "raw", name=n) for n in (name, "y")))
    b = npz(tmp_path / "b.npz", y=normal(2))
    result = run(a, b, code=1)
    assert "\x1b" not in result.output and "[red]x[/red]\\x1b[31m\\n" in result.output


# --- differences


def test_integers_of_different_widths_compare_as_numbers() -> None:
    small, large = np.array([0, 1, 255], np.uint8), np.array([0, 1, 255], np.uint64)
    assert unequal(small, large) == unequal(large, small.astype(np.int16)) == 0
    minus, top = np.array([-1, 0]), np.array([2**64 - 1, 2**63], np.uint64)
    assert unequal(minus, top) == unequal(top, minus) == 2
    assert unequal(np.array([True, False]), np.array([1, 1], np.int8)) == 1
    many = np.arange(300_000).reshape(3, 100_000)
    other = many.copy()
    other[2, -1] += 1
    assert unequal(many, many) == 0 and unequal(many, other) == 1
    assert unequal(many[:0], many[:0]) == 0


def test_differences_of_special_values() -> None:
    a = np.array([1, np.nan, np.inf, -0.0], np.float32)
    same = difference(a, a.copy())
    assert (same.nmse, same.max_difference, same.cosine, same.sign_agreement) == (0, 0, 1, 1)
    wild = difference(a, np.array([1, 0, np.inf, 0], np.float32))
    assert wild.nmse == wild.max_difference == math.inf
    assert difference(a, np.array([1, np.nan, -np.inf, 0], np.float32)).nmse == math.inf
    zero = np.zeros(3, np.float32)
    nothing = difference(zero, zero)
    assert nothing.nmse == 0 and math.isnan(nothing.cosine) and math.isnan(nothing.sign_agreement)
    assert difference(zero, zero + 1).nmse == math.inf
    empty = difference(zero[:0], zero[:0])
    assert (empty.values, empty.nmse, empty.max_difference) == (0, 0, 0)
    assert together([]).nmse == 0 and together([nothing, wild]).nmse == math.inf
    without_values = difference(zero + 1, zero)
    assert math.isnan(without_values.cosine)
    assert math.isnan(together([without_values, without_values]).cosine)


def test_a_lost_value_has_another_sign_and_no_angle() -> None:
    a = np.array([3, 4, -5, np.inf, 0], np.float32)
    lost = difference(a, np.array([np.nan, 4, -np.inf, np.inf, np.nan], np.float32))
    assert (lost.signed, lost.agreeing) == (3, 2) and lost.nmse == math.inf
    assert math.isnan(lost.cosine)
    intact = difference(a[1:3], a[1:3])
    assert math.isnan(together([lost, intact]).cosine)
    gone = difference(a[:1], a[:1] * np.nan)
    assert math.isnan(together([gone, intact]).cosine)
    assert together([gone, intact]).sign_agreement == 2 / 3


def test_tensors_of_far_units_have_an_angle() -> None:
    wide = difference(np.array([3e150, 4e150]), np.array([3e-50, 4e-50]))
    assert wide.cosine == pytest.approx(1) and wide.norm_b == pytest.approx(5e-50)


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_squares_neither_overflow_nor_underflow(unit: float) -> None:
    a = np.array([3.0, -4.0]) * unit
    comparison = difference(a, a * 1.5)
    assert comparison.nmse == pytest.approx(0.25) and comparison.cosine == pytest.approx(1)
    assert comparison.norm_a == pytest.approx(5 * unit)
    near = difference(np.array([1e150, 0]), np.array([1e150, 1e-160]))
    assert near.max_difference == 1e-160


def test_differences_beyond_float64_are_infinite() -> None:
    large = np.full(10, 1.7e308)
    for a, b in ((large, -large), (large, 0.99 * large)):  # b − a exceeds float64, or only ‖a‖
        assert difference(a, b).nmse == math.inf
    assert difference(large, large).nmse == 0


def test_differences_of_parts_combine() -> None:
    a, b = normal(3000), normal(3000, seed=1)
    parts = [difference(a[i : i + 1000], b[i : i + 1000]) for i in (0, 1000, 2000)]
    whole, joined = difference(a, b), together(parts)
    assert joined == pytest.approx(whole, rel=1e-12)


def test_sums_have_a_fixed_order() -> None:
    """Lane t of 256 adds elements t, t + 256, …; then lanes in halves."""
    a = normal(1000).astype(np.float64)
    lanes = np.zeros(256)
    for i, x in enumerate(a.tolist()):
        lanes[i % 256] += x * x
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    assert difference(a, a).norm_a == math.sqrt(lanes[0])
