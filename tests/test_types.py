"""Type checkers know what the public functions take and return.

mypy checks this file. A comment that ignores an error is one itself if mypy reports no such error.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest

import gcodec
from gcodec.codecs import TopK, dct8
from gcodec.interop import panthalia

Floats: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[np.float32]]

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        return value


X: Floats = np.array([0.5, -2, 3], np.float32)


def test_results_of_functions(tmp_path: Path) -> None:
    frame = gcodec.encode(X, "raw")
    size = gcodec.encode(X, "raw", out=bytearray(1000))
    assert type(assert_type(frame, bytes)) is bytes
    assert type(assert_type(size, int)) is int
    arrays = [
        assert_type(gcodec.decode(frame), np.ndarray),
        assert_type(gcodec.decode(frame, like=X), Floats),
        assert_type(gcodec.decode(frame, out=X), Floats),
        assert_type(gcodec.decode_sum([frame]), np.ndarray),
        assert_type(gcodec.decode_sum([frame], out=X), Floats),
    ]
    gcodec.save_file({"x": X}, tmp_path / "x.gcf", "raw")
    with gcodec.open(tmp_path / "x.gcf") as file:
        arrays.append(assert_type(file["x"], np.ndarray))
        arrays += assert_type(list(file.values()), list[np.ndarray])
    arrays.append(gcodec.load_file(tmp_path / "x.gcf", like={"x": X})["x"])
    assert all(type(decoded) is np.ndarray for decoded in arrays)
    assert type(assert_type(gcodec.codecs(), dict[str, type[gcodec.Codec]])) is dict


def test_results_have_the_library_of_their_argument() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(3)
    frame = gcodec.encode(X, "raw")
    assert type(gcodec.decode(frame, like=x)) is torch.Tensor
    assert type(gcodec.decode_sum([frame], out=x)) is torch.Tensor


def test_arguments_are_tensors_shapes_and_bytes() -> None:
    frame = gcodec.encode(array("f", [0.5, -2, 3]), "sign")
    payload = gcodec.parse("sign").encode(X)
    for shape in (3, (3,), [np.int64(3)]):
        assert gcodec.parse("sign").decode(payload, shape).shape == (3,)
    view = np.frombuffer(frame, np.uint8)
    assert gcodec.decode(view).tolist() == gcodec.decode(memoryview(frame)).tolist()
    with pytest.raises(TypeError, match="must be an array"):
        gcodec.encode([0.5, -2.0], "sign")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="must be an array"):
        gcodec.Feedback("sign").compress("x", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"gcodec\.load_file"):
        gcodec.decode("x.gcf")  # type: ignore[call-overload]
    with pytest.raises(gcodec.ParameterError, match="non-negative integers"):
        gcodec.parse("sign").decode(payload, "3")  # type: ignore[arg-type]


def test_messages_of_panthalia_are_mappings_or_files() -> None:
    message = assert_type(panthalia.encode(X), dict[str, np.ndarray])
    decoded = assert_type(panthalia.decode(message), np.ndarray)
    assert decoded.tolist() == panthalia.decode(panthalia.to_safetensors(message)).tolist()
    same = assert_type(dct8.to_panthalia(X), dict[str, np.ndarray])
    assert decoded.tolist() == assert_type(dct8.from_panthalia(same), np.ndarray).tolist()
    file = assert_type(dct8.to_safetensors(same), bytes)
    assert file == panthalia.to_safetensors(message)


def test_parameters_of_codecs_are_keywords() -> None:
    """Their order is that of the header, in which the main parameter need not be first."""
    assert assert_type(TopK(k=3), TopK) == gcodec.parse("topk:k=3")
    with pytest.raises(TypeError, match="positional"):
        TopK(3)  # type: ignore[call-arg, arg-type]
