"""Files of frames that restore .safetensors files byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run

import gcodec
from gcodec.tensorfiles import exact_file
from gcodec.tensorfiles.structure import FILE_PREFIX

TENSORS = {
    "b.weight": ("BF16", (30, 20)),
    "a.weight": ("F32", (11, 7)),
    "ids": ("I64", (5,)),
    "mask": ("BOOL", (9,)),
    "small": ("F8_E4M3", (6, 4)),
    "empty": ("F16", (0, 3)),
    "scalar": ("F64", ()),
}
SIZES = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "F16": 2, "F64": 8}


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...]]], blanks: int = 3) -> bytes:
    """Return a file with metadata, blanks after its header, and random tensors in any order."""
    rng, header, data = np.random.default_rng(1), {"__metadata__": {"format": "pt", "x": "é"}}, b""
    for name, (dtype, shape) in tensors.items():
        count = int(np.prod(shape, dtype=int)) * SIZES[dtype]
        part = rng.integers(0, 2 if dtype == "BOOL" else 256, count, np.uint8).tobytes()
        offsets = [len(data), len(data) + count]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}  # type: ignore[dict-item]
        data += part
    text = json.dumps(dict(sorted(header.items()))).encode() + b" " * blanks
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("spec", ("lossless", "lossless:mode=fast"))
def test_file_comes_back_byte_for_byte(tmp_path: Path, spec: str) -> None:
    source, coded, back = (tmp_path / name for name in ("m.safetensors", "m.gcf", "b.safetensors"))
    source.write_bytes(safetensors(TENSORS))
    run("encode", source, "-c", spec, "-o", coded)
    run("decode", coded, "-o", back)
    assert back.read_bytes() == source.read_bytes()
    with gcodec.open(coded) as file:
        assert set(file.names()) == set(TENSORS)
        assert file["a.weight"].shape == (11, 7)


def test_model_in_shards_comes_back_as_a_folder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    names = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    parts = [dict(list(TENSORS.items())[:3]), dict(list(TENSORS.items())[3:])]
    for name, part in zip(names, parts, strict=True):
        (model / name).write_bytes(safetensors(part))
    weights = {tensor: names[k] for k in (0, 1) for tensor in parts[k]}
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}, indent=3))
    run("encode", index, "-c", "lossless", "-o", tmp_path / "m.gcf")
    run("decode", tmp_path / "m.gcf")
    for path in model.iterdir():
        assert (tmp_path / "m" / path.name).read_bytes() == path.read_bytes()
    run("decode", tmp_path / "m.gcf", code=2)  # which would replace files
    run("decode", tmp_path / "m.gcf", "--force")


def test_tensors_can_still_be_converted(tmp_path: Path) -> None:
    source, coded = tmp_path / "m.safetensors", tmp_path / "m.gcf"
    source.write_bytes(safetensors({"w": ("F32", (4, 3))}))
    run("encode", source, "-c", "lossless", "-o", coded)
    run("decode", coded, "-o", tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as arrays:
        assert arrays["w"].tobytes() == source.read_bytes()[-48:]
    run("encode", source, "-c", "lossless", "-L", "w", "-o", coded, "--force")
    assert [frame.name for frame in gcodec.iter_frames(coded)] == ["w"]


def frames_of(source: bytes, tmp_path: Path) -> list[bytes]:
    (tmp_path / "m.safetensors").write_bytes(source)
    run("encode", tmp_path / "m.safetensors", "-c", "lossless")
    return [frame.to_bytes() for frame in gcodec.iter_frames(tmp_path / "m.gcf")]


def test_frames_that_do_not_make_the_file_are_refused(tmp_path: Path) -> None:
    head, *tensors = frames_of(safetensors(TENSORS), tmp_path)
    other = gcodec.encode(np.zeros(3, np.float32), "lossless", name="other")
    start = gcodec.decode(head)
    cases = {
        "missing": head + b"".join(tensors[:-1]),
        "here": head + b"".join(reversed(tensors)),
        "belongs to no file": head + b"".join(tensors) + other,
        "damaged": gcodec.encode(start[:-9], "lossless", name=f"{FILE_PREFIX}m") + tensors[0],
    }
    for number, (error, data) in enumerate(cases.items()):
        path = tmp_path / f"{number}.gcf"
        path.write_bytes(data)
        assert error in run("decode", path, "-o", tmp_path / "out.safetensors", code=1).output
        assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("name", ("../x", "a/b", ".hidden", "", "c:d", "a\nb"))
def test_names_of_files_stay_in_their_folder(name: str) -> None:
    with pytest.raises(gcodec.Corrupt, match="names the file"):
        exact_file.file_name(FILE_PREFIX + name)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ("[1e999]", "[0, 4]"),
        ("[-1, -1]", "[0, 4]"),
        ("[1]", "[0.0, 4.0]"),
        ('"12"', "[0, 8]"),
        ("[0, 1180591620717411303424]", "[0, 0]"),
        (str([1] * 70), "[0, 4]"),
    ],
)
def test_shapes_and_offsets_that_no_array_has_are_refused(shape: str, offsets: str) -> None:
    text = f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()
    with pytest.raises(gcodec.FormatError):
        exact_file.tensors_of(len(text).to_bytes(8, "little") + text)


def test_bytes_between_tensors_are_refused() -> None:
    header = {"w": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}
    text = json.dumps(header).encode()
    with pytest.raises(gcodec.Corrupt, match="belong to no tensor"):
        exact_file.tensors_of(len(text).to_bytes(8, "little") + text)
