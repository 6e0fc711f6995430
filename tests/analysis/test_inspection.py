"""`gcodec.inspect`: rows of the tensors of a program or a file."""

from __future__ import annotations

import csv
import io
import math

import ml_dtypes
import numpy as np
import pytest
from command_line import run
from example_files import DUMP as EXAMPLE

import gcodec


def gaussian(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_rows_are_those_of_the_command() -> None:
    rows = gcodec.inspect(EXAMPLE, nmse=0.1, max_values=1000)
    printed = run(
        "inspect", EXAMPLE, "--csv", "--max-nmse", "0.1", "--sample", "1000", "-q"
    ).stdout
    table = list(csv.DictReader(io.StringIO(printed)))
    assert len(rows) == len(table) == 29
    for row, line in zip(rows, table, strict=True):
        for key, value in row.items():
            assert line[key] == ("" if value != value else str(value)), key
    assert gcodec.inspect(str(EXAMPLE), nmse=0.1, max_values=1000) == rows


def test_codecs_are_tried_as_by_the_command() -> None:
    specs = ["topk:ratio=0.1", "sign"]
    rows = gcodec.inspect(EXAMPLE, codecs=specs)
    words = [word for spec in specs for word in ("-c", spec)]
    printed = run("inspect", EXAMPLE, "--csv", "-q", *words).stdout
    for row, line in zip(rows, csv.DictReader(io.StringIO(printed)), strict=True):
        assert {key: str(value) for key, value in row.items() if value == value}.items() <= (
            line.items()
        )
        assert list(row)[-4:] == [f"{s} {k}" for s in specs for k in ("bits_per_value", "nmse")]
    w = gaussian(30, 40)
    frame = gcodec.encode(w, "sign", name="tensor")
    (row,) = gcodec.inspect(w, codecs="sign")
    assert row["sign bits_per_value"] == 8 * len(frame) / w.size
    error = float(np.square(w - gcodec.decode(frame), dtype=float).sum())
    assert row["sign nmse"] == pytest.approx(error / float(np.square(w, dtype=float).sum()))
    (row,) = gcodec.inspect(w, codecs=("topk:ratio=0.01", "topk"))  # keys as the caller writes
    assert row["topk:ratio=0.01 nmse"] == row["topk nmse"]
    (row,) = gcodec.inspect({"n": np.arange(3)}, codecs=gcodec.parse("sign"))
    assert math.isnan(row["sign bits_per_value"]) and math.isnan(row["sign nmse"])
    with pytest.raises(gcodec.ParameterError, match="codec='nix'"):
        gcodec.inspect(w, codecs=["nix"])


def test_containers_and_arrays() -> None:
    w = gaussian(30, 40)
    tree = {"a": {"w": w, 7: [w[0], None, "text", 1.5]}, "n": np.arange(3), "s": np.float32(2)}
    rows = gcodec.inspect(tree)
    assert [row["tensor"] for row in rows] == ["a.w", "a.7.0", "n", "s"]
    assert [row["shape"] for row in rows] == ["30x40", "40", "3", ""]
    assert rows[0]["rms"] == pytest.approx(float(np.sqrt(np.mean(w.astype(float) ** 2))))
    assert (rows[2]["dtype"], rows[2]["measured"], rows[2]["fit"]) == ("int64", 0, "")
    assert math.isnan(rows[2]["rms"])
    assert gcodec.inspect(w)[0] == {**rows[0], "tensor": "tensor"}
    assert gcodec.inspect({}) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", ">f4"])
def test_dtypes(dtype: str) -> None:
    values = gaussian(50).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    (row,) = gcodec.inspect(values)
    assert row["dtype"] == values.dtype.name
    assert row["max_abs"] == float(np.max(np.abs(values.astype(float))))


def test_state_dict_of_torch() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(20, 30)
    rows = gcodec.inspect(layer.state_dict())
    assert [(row["tensor"], row["dtype"]) for row in rows] == [
        ("weight", "float32"),
        ("bias", "float32"),
    ]
    values = layer.weight.detach().numpy()
    assert rows[0]["max_abs"] == float(np.max(np.abs(values)))
    (row,) = gcodec.inspect(layer.weight.to(torch.bfloat16))
    assert row["dtype"] == "bfloat16"
    (row,) = gcodec.inspect([torch.zeros(3).to(torch.float8_e4m3fn)])
    assert (row["dtype"], row["measured"]) == ("float8_e4m3fn", 0)
    with pytest.raises(TypeError, match=r"e\.coo is not a dense tensor"):
        gcodec.inspect({"e": {"coo": torch.eye(3).to_sparse()}})


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_data_frames(library: str) -> None:
    """These libraries have dtypes of their own."""
    module = pytest.importorskip(library)
    dtype = "Float32" if library == "pandas" else module.Float32
    (row,) = gcodec.inspect({"x": module.Series([1.5, -2.0], dtype=dtype)})
    assert (row["dtype"], row["shape"], row["max_abs"]) == ("float32", "2", 2)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_take_the_rows(library: str) -> None:
    module = pytest.importorskip(library)
    tree = {f"n{i}": np.array(i) for i in range(150)} | {"w": gaussian(1000)}
    frame = module.DataFrame(gcodec.inspect(tree))
    assert frame.shape == (151, 14)
    assert list(frame["tensor"])[-1] == "w"
    assert list(frame["rms"])[-1] > 0


def test_each_column_has_one_type() -> None:
    first, second = gcodec.inspect({"n": np.array(1), "w": gaussian(1000)})
    assert {k: type(v) for k, v in first.items()} == {k: type(v) for k, v in second.items()}


def test_notebooks_show_a_table() -> None:
    tree = {"<b>": gaussian(100)} | {f"n{i}": np.array(i) for i in range(80)}
    text = gcodec.inspect(tree)._repr_html_()
    assert "<td>&lt;b&gt;</td>" in text and "<b>" not in text
    assert "<th>entropy_bits</th>" in text
    assert "(21 more)" in text and "nan" not in text
    assert gcodec.inspect([])._repr_html_().startswith("<table>")


def test_wrong_arguments_are_refused() -> None:
    x = gaussian(9)
    for nmse in (0, -1.0, math.nan, math.inf, "x"):
        with pytest.raises(gcodec.ParameterError, match="nmse"):
            gcodec.inspect(x, nmse=nmse)  # type: ignore[arg-type]
    for count in (0, 1.5, True):
        with pytest.raises(gcodec.ParameterError, match="max_values"):
            gcodec.inspect(x, max_values=count)  # type: ignore[arg-type]
    for codecs in (5, None):
        with pytest.raises(gcodec.ParameterError, match="codecs"):
            gcodec.inspect(x, codecs=codecs)  # type: ignore[arg-type]
    with pytest.raises(gcodec.ParameterError, match="two tensors have the path"):
        gcodec.inspect({"1": x, 1: x})
    circle: dict[str, object] = {"x": x}
    circle["again"] = circle
    with pytest.raises(gcodec.ParameterError, match="nested at most 64 deep"):
        gcodec.inspect(circle)
    for tree in (3, None, b"x"):
        with pytest.raises(TypeError, match="tree is of type"):
            gcodec.inspect(tree)
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.inspect(EXAMPLE, limits=gcodec.Limits(max_elements=10))
    with pytest.raises(gcodec.ParameterError, match=r"a file named .*; gcodec\.load_file reads"):
        gcodec.inspect(EXAMPLE.with_name("fc.gcf"))
    with pytest.raises(FileNotFoundError, match=r"grads'$"):
        gcodec.inspect("grads")
