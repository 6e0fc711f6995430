"""Files that contain a message of many tensors, some of which share a frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import json_of, run

import gcodec

NAMED = {
    "a": np.arange(3, dtype=np.float32),
    "one": np.float32(7).reshape(()),
    "steps": np.arange(5),
    "large": np.ones((80, 60), np.float32),
    "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
    "done": np.arange(2),
}


def message_file(folder: Path, **options: Any) -> Path:
    path = folder / "message.gcf"
    path.write_bytes(gcodec.encode_many(NAMED, "raw", **options))
    return path


def same(tensors: Any) -> bool:
    return tensors.keys() == NAMED.keys() and all(
        (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        for x, y in ((tensors[name], NAMED[name]) for name in NAMED)
    )


@pytest.mark.parametrize("key", [None, b"secret"])
def test_tensors_of_a_shared_frame_are_opened_by_name(tmp_path: Path, key: bytes | None) -> None:
    path = message_file(tmp_path, key=key)
    assert same(gcodec.load_file(path, key=key))
    with gcodec.open(path, key=key) as file:
        assert file.shapes() == {name: NAMED[name].shape for name in file}
        assert file.dtypes()["steps"] == "int64"
        assert file.names() == ["a", "one", "rows", "steps", "done", "large"]
        assert file.decode_range("rows", 2, 5).tolist() == [2, 3, 4]
        for name in ("rows", "steps", "a", "large", "done"):  # of one shared frame and another
            frame = file.frame(name)
            assert (frame.name, frame.shape) == (name, NAMED[name].shape)
            assert np.array_equal(frame.decode(), NAMED[name])
        out = np.zeros((2, 3), np.float32)
        assert file.decode("rows", out=out) is out
        assert out.tolist() == NAMED["rows"].tolist()
        with pytest.raises(KeyError, match="no tensor 'row'"):
            file["row"]


def test_command_decodes_and_checks_them(tmp_path: Path) -> None:
    path, out = message_file(tmp_path), tmp_path / "back.npz"
    run("decode", path, "-o", out)
    with np.load(out) as back:
        assert same(back)
    run("decode", "--force", path, "-L", "rows", "-o", out)
    with np.load(out) as back:
        assert back.files == ["rows"]
    assert json_of("verify", path)["files"][0]["frames"] == 5
    run("compare", path, path)


def _message(listed: object, shared: np.ndarray, name: str | None = None) -> bytes:
    text = listed
    if not isinstance(listed, np.ndarray):
        text = np.frombuffer(json.dumps(listed).encode(), np.uint8)
    frames = gcodec.encode(text, "raw", name="\\members"), gcodec.encode(shared, "raw", name=name)
    return b"".join(frames)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (_message([["a", [2]]], np.ones(3, np.float32)), "frame 1: tensors of 2 elements share"),
        (_message([["a", [3]]], np.ones(3, np.float32), "b"), "frame 1: tensors of 3 elements"),
        (_message([["a", [3]]], np.ones((1, 3), np.float32)), "frame 1: tensors of 3 elements"),
        (_message({}, np.ones(3, np.float32)), "frame 0: the list of members is not a list"),
        (_message([], np.ones(0, np.float32)), "frame 0: the list of members is not a list, or"),
        (_message(np.frombuffer(b'[["a",[3]]]', np.int8), np.ones(3, np.float32)),
         "frame 0: the list of members is not a vector of uint8"),
        (_message(np.frombuffer(b'[["a",[3]]]', np.uint8)[None], np.ones(3, np.float32)),
         "frame 0: the list of members is not a vector of uint8"),
        (_message(np.frombuffer(b'[["\xe9",[3]]]', np.uint8), np.ones(3, np.float32)),
         "frame 0: the list of members is not JSON"),
        (_message([["a", [3]]], np.ones(3, np.float32))[:-9], None),
        (gcodec.encode(np.frombuffer(b'[["a",[3]]]', np.uint8), "raw", name="\\members"),
         "the bytes end after a list of members"),
    ],
)  # fmt: skip
def test_damaged_lists_are_refused_by_all_readers(
    tmp_path: Path, data: bytes, text: str | None
) -> None:
    path = tmp_path / "message.gcf"
    path.write_bytes(data)
    with pytest.raises(gcodec.FormatError, match=text):
        gcodec.decode_many(data)
    with pytest.raises(gcodec.FormatError, match=text):
        gcodec.load_file(path)
    run("decode", path, "-o", tmp_path / "back.npz", code=1)
    run("verify", path, code=1)


def test_two_tensors_of_a_name_are_refused(tmp_path: Path) -> None:
    data = _message([["a", [1]], ["a", [2]]], np.ones(3, np.float32))
    path = tmp_path / "message.gcf"
    path.write_bytes(data)
    with pytest.raises(gcodec.Corrupt, match="frame 1: 'a' occurs twice"):
        gcodec.decode_many(data)
    with pytest.raises(gcodec.Unsupported, match="two frames are named 'a'"):
        gcodec.load_file(path)


def test_errors_name_a_damaged_list_once(tmp_path: Path) -> None:
    path = message_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    for read in (lambda: gcodec.decode_many(data), lambda: gcodec.load_file(path)):
        with pytest.raises(gcodec.Corrupt) as caught:
            read()
        assert str(caught.value).count("frame 0: the payload's checksum is wrong") == 1
        assert str(caught.value).count("frame 0") == 1


def test_more_tensors_than_the_most_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = message_file(tmp_path)
    monkeypatch.setattr("gcodec.tensorfiles.frame_file.MAX_TENSORS", 5)
    with pytest.raises(gcodec.LimitExceeded, match="more than 5 tensors in one file"):
        gcodec.load_file(path)
