"""A golden tree: the lines of a file of frames, checked in both directions; see `vector`.

``structure`` is the JSON text or ``none``, ``names`` a JSON list, ``grad`` one float32 for each
tensor, and ``file`` the bytes with the codec ``raw``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from reference import frame as reference_frame
from reference import trees

import gcodec
from gcodec.tensorfiles import structure
from golden import vector

UINT8, FLOAT32, RAW = 6, 1, 1


def frame_of(array: np.ndarray, name: str) -> bytes:
    """Return the frame of an array with the codec ``raw``, as the reference writes it."""
    code = UINT8 if array.dtype == np.uint8 else FLOAT32
    bits = 8 * array.nbytes
    return reference_frame.build(RAW, code, array.shape, b"", b"", array.tobytes(), bits, name)


def file_of(text: str | None, tensors: list[tuple[str, np.ndarray]]) -> bytes:
    """Return the bytes of a file, as the reference writes them."""
    frames = [frame_of(array, name) for name, array in tensors]
    if text is not None:
        frames.insert(0, frame_of(np.frombuffer(text.encode(), np.uint8), "\\structure"))
    return b"".join(frames)


def same(left: Any, right: Any) -> bool:
    """Whether two trees have the same types, keys, values and arrays."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and np.array_equal(left, right))
    return left == right or (left != left and right != right)


def check(fields: dict[str, str], folder: Path) -> None:
    """Save and load one golden tree."""
    assert fields.keys() == {"structure", "names", "grad", "file"}
    text = None if fields["structure"] == "none" else fields["structure"]
    names = json.loads(fields["names"])
    arrays = [np.array([float(word)], np.float32) for word in fields["grad"].split()]
    tensors = list(zip(names, arrays, strict=True))
    tree = dict(tensors) if text is None else trees.tree_of(text, arrays)
    expected = vector.data(fields["file"])

    assert file_of(text, tensors).hex(" ") == expected.hex(" ")
    if text is not None:
        assert trees.text(tree) == text
        assert [path for path, _ in trees.paths(tree)] == names

    path = folder / "tree.gcf"
    gcodec.save_file(tree, path, "raw")
    assert path.read_bytes().hex(" ") == expected.hex(" ")
    assert same(gcodec.load_file(path), tree)
    assert same(gcodec.load_file(path, tree), tree)
    with gcodec.open(path) as file:
        assert file.names() == names


def check_refused(fields: dict[str, str]) -> None:
    """Read a structure that must be refused."""
    assert fields.keys() == {"structure", "names", "error"}
    try:
        structure.read(fields["structure"].encode(), json.loads(fields["names"]))
    except gcodec.FormatError as error:
        assert type(error).__name__ == fields["error"]
    else:
        raise AssertionError("the structure was accepted")
