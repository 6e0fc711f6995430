"""Type checkers know what the public functions return."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gcodec
from gcodec.codecs import TopK

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: Any, kind: Any) -> Any:
        return value


X = np.array([0.5, -2, 3], np.float32)


def test_results_of_functions(tmp_path: Path) -> None:
    frame = gcodec.encode(X, "raw")
    size = gcodec.encode(X, "raw", out=bytearray(1000))
    assert type(assert_type(frame, bytes)) is bytes
    assert type(assert_type(size, int)) is int
    arrays = [
        assert_type(gcodec.decode(frame), np.ndarray),
        assert_type(gcodec.decode(frame, like=X), np.ndarray[Any, Any]),
        assert_type(gcodec.decode(frame, out=X), np.ndarray[Any, Any]),
        assert_type(gcodec.decode_sum([frame]), np.ndarray),
        assert_type(gcodec.decode_sum([frame], out=X), np.ndarray[Any, Any]),
    ]
    gcodec.save_file({"x": X}, tmp_path / "x.gcf", "raw")
    with gcodec.open(tmp_path / "x.gcf") as file:
        arrays.append(assert_type(file["x"], np.ndarray))
    assert all(type(array) is np.ndarray for array in arrays)
    assert type(assert_type(gcodec.codecs(), dict[str, type[gcodec.Codec]])) is dict


def test_results_have_the_library_of_their_argument() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(3)
    frame = gcodec.encode(X, "raw")
    assert type(gcodec.decode(frame, like=x)) is torch.Tensor
    assert type(gcodec.decode_sum([frame], out=x)) is torch.Tensor


def test_parameters_of_codecs_are_keywords() -> None:
    """Their order is that of the header, in which the main parameter need not be first."""
    assert assert_type(TopK(k=3), TopK) == gcodec.parse("topk:k=3")
    with pytest.raises(TypeError, match="positional"):
        TopK(3)  # type: ignore[misc]
