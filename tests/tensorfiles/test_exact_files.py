"""Files of frames that restore .safetensors files byte for byte."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run

import gcodec
from gcodec.tensorfiles import exact_file
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.structure import FILE_PREFIX

TENSORS = {
    "b.weight": ("BF16", (30, 20)),
    "a.weight": ("F32", (11, 7)),
    "ids": ("I64", (5,)),
    "mask": ("BOOL", (9,)),
    "small": ("F8_E4M3", (6, 4)),
    "smaller": ("F8_E8M0", (6,)),
    "empty": ("F16", (0, 3)),
    "no mask": ("BOOL", (0,)),
    "deep": ("F32", (1,) * 32),
    "scalar": ("F64", ()),
}
INDEX = "model.safetensors.index.json"
SIZES = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F16": 2, "F64": 8}


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
    index = model / INDEX
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}, indent=3))
    run("encode", index, "-c", "lossless", "-o", tmp_path / "m.gcf")
    run("decode", tmp_path / "m.gcf")
    for path in model.iterdir():
        assert (tmp_path / "m" / path.name).read_bytes() == path.read_bytes()
    run("decode", tmp_path / "m.gcf", code=2)  # which would replace files
    run("decode", tmp_path / "m.gcf", "--force")
    arrays = tmp_path / "m.npz"
    result = run("decode", tmp_path / "m.gcf", "-o", arrays, code=3)
    assert "'float8_e4m3fn': must be one that the format stores; use .safetensors" in result.stderr
    run("encode", index, "-c", "lossless", "-L", "!small*", "-o", tmp_path / "m.gcf", "--force")
    run("decode", tmp_path / "m.gcf", "-o", arrays)
    run("decode", tmp_path / "m.gcf", "-o", arrays, code=2)
    run("decode", tmp_path / "m.gcf", "-o", arrays, "--force")
    with np.load(arrays) as file:
        assert set(file) == set(TENSORS) - {"small", "smaller"}


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
        "two files": 2 * (head + b"".join(tensors)),
        "missing": head + b"".join(tensors[:-1]),
        "here": head + b"".join(reversed(tensors)),
        "has the tensor": head + gcodec.encode(np.zeros(3, np.float32), "lossless"),
        "belongs to no file": head + b"".join(tensors) + other,
        "another length": gcodec.encode(start[:-9], "lossless", name=f"{FILE_PREFIX}m")
        + tensors[0],
        "uint8 in one dimension, not int8": gcodec.encode(
            start.view(np.int8), "lossless", name=f"{FILE_PREFIX}m"
        ),
        f"in one dimension, not uint8 of shape (1, {start.size})": gcodec.encode(
            start[None], "lossless", name=f"{FILE_PREFIX}m"
        ),
        "the start of a file has 100000009 bytes, more than 100000008": gcodec.encode(
            np.zeros(100_000_009, np.uint8), "lossless", name=f"{FILE_PREFIX}m"
        ),
    }
    for number, (error, data) in enumerate(cases.items()):
        path = tmp_path / f"{number}.gcf"
        path.write_bytes(data)
        code = {"two": 3, "the": 4}.get(error.split()[0], 1)
        assert error in run("decode", path, "-o", tmp_path / "out.safetensors", code=code).output
        assert not (tmp_path / "out.safetensors").exists()


def test_error_deletes_the_temporary_file_at_once(tmp_path: Path) -> None:
    frames = [gcodec.Frame.from_bytes(x) for x in frames_of(safetensors(TENSORS), tmp_path)]
    before = sorted(tmp_path.iterdir())
    restorer = exact_file.Restorer(lambda name: tmp_path / "out.safetensors")
    with pytest.raises(gcodec.Truncated, match="missing"), restorer:
        for frame in frames[:-1]:
            restorer.add(frame)
    assert sorted(tmp_path.iterdir()) == before


def test_shards_must_be_complete(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model")
    run("encode", index, "-c", "lossless", "-o", tmp_path / "m.gcf")
    frames = list(gcodec.iter_frames(tmp_path / "m.gcf"))
    missing = next(k for k, frame in enumerate(frames) if frame.name == "w0")
    del frames[missing]
    (tmp_path / "m.gcf").write_bytes(b"".join(frame.to_bytes() for frame in frames))
    refused = run("decode", tmp_path / "m.gcf", "-o", tmp_path / "out", code=1)
    assert "the tensor 'w0' is missing" in refused.output
    assert not (tmp_path / "out").exists()


def test_index_in_capitals(tmp_path: Path) -> None:
    index = sharded(tmp_path / "model")
    index = index.rename(index.with_name(index.name.upper()))
    run("encode", index, "-c", "lossless", "-o", tmp_path / "m.gcf")
    run("decode", tmp_path / "m.gcf", "-o", tmp_path / "out")
    for path in index.parent.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def sharded(folder: Path, count: int = 2) -> Path:
    """Write a model of one tensor in each shard, and return its index."""
    folder.mkdir()
    names = [f"model-{k}.safetensors" for k in range(count)]
    for k, name in enumerate(names):
        (folder / name).write_bytes(safetensors({f"w{k}": ("F32", (20,))}))
    index = folder / INDEX
    weights = {f"w{k}": name for k, name in enumerate(names)}
    index.write_text(json.dumps({"weight_map": weights}))
    return index


@pytest.mark.parametrize("verb", ["decode", "apply"])
def test_damage_of_the_last_shard_leaves_all_files(tmp_path: Path, verb: str) -> None:
    index, coded, out = sharded(tmp_path / "model"), tmp_path / "m.gcf", tmp_path / "out"
    base = [index] if verb == "apply" else []
    if base:
        run("diff", index, index, "-o", coded)
    else:
        run("encode", index, "-c", "lossless", "-o", coded)
    data = bytearray(coded.read_bytes())
    data[-5] ^= 1
    coded.write_bytes(data)
    out.mkdir()
    (out / "model-0.safetensors").write_text("old")
    run(verb, coded, *base, "-o", out, "--force", code=1)
    assert [path.name for path in out.iterdir()] == ["model-0.safetensors"]
    assert (out / "model-0.safetensors").read_text() == "old"


@pytest.mark.parametrize("name", ["numpy.py", "a.safetensors.py", "m", "b.safetensors.index.json"])
def test_shards_cannot_be_programs(tmp_path: Path, name: str) -> None:
    """A file of a stranger must not leave a module where Python would import it."""
    index = gcodec.encode(np.frombuffer(b"{}", np.uint8), "raw", name=f"{FILE_PREFIX}{INDEX}")
    code = b"\nprint('code of the file')\n"
    tensor = {"dtype": "U8", "shape": [len(code)], "data_offsets": [0, len(code)]}
    text = json.dumps({"w": tensor}).encode()
    frames = gcodec.encode(np.frombuffer(code, np.uint8), "raw", name="w")
    for start, own in ((len(text).to_bytes(8, "little"), name), (b"#234567\n", "m.safetensors")):
        head = np.frombuffer(start + text, np.uint8)
        begin = gcodec.encode(head, "raw", name=f"{FILE_PREFIX}{own}")
        (tmp_path / "m.gcf").write_bytes(index + begin + frames)
        run("decode", tmp_path / "m.gcf", "-o", tmp_path / "out", code=1)
        assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits of a process")
def test_shards_may_outnumber_file_descriptors(tmp_path: Path) -> None:
    import resource

    index = sharded(tmp_path / "model", 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        run("diff", index, index, "-o", tmp_path / "m.gcf")
        run("apply", tmp_path / "m.gcf", index, "-o", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for path in index.parent.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["a:b", ".hidden", "what?", "\udcff", "a\x1b"])
@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")
def test_names_that_could_not_be_restored_are_refused(tmp_path: Path, name: str) -> None:
    source, plain = tmp_path / f"{name}.safetensors", tmp_path / "plain.safetensors"
    for path in (source, plain):
        path.write_bytes(safetensors(TENSORS))
    out = tmp_path / "out.gcf"
    assert "rename it" in run("encode", source, "-c", "lossless", "-o", out, code=3).output
    assert "rename it" in run("diff", plain, source, "-o", out, code=3).output
    assert not out.exists()
    run("diff", source, plain, "-o", out)
    run("apply", out, source, "-o", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == plain.read_bytes()


def test_base_may_have_shards_in_other_folders(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.safetensors").write_bytes(safetensors(TENSORS))
    index, new = tmp_path / "m.safetensors.index.json", tmp_path / "n.safetensors"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(TENSORS, "part/a.safetensors")}))
    new.write_bytes(safetensors(TENSORS, blanks=7))
    run("diff", index, new, "-o", tmp_path / "d.gcf")
    run("apply", tmp_path / "d.gcf", index, "-o", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == new.read_bytes()
    assert "another folder" in run("diff", new, index, "-o", tmp_path / "e.gcf", code=3).output


def test_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(TENSORS))
    file = exact_file.OriginalFile(path)
    kept = file.load(file.tensors[0], gcodec.Limits()).copy()
    (tmp_path / "new").write_bytes(safetensors(TENSORS))
    os.replace(tmp_path / "new", path)
    with pytest.raises(gcodec.Corrupt, match="changed while"):
        file.load(file.tensors[0], gcodec.Limits())
    assert kept.tobytes()


def test_booleans_above_1_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors({"mask": ("BOOL", (2,))})[:-1] + b"\2")
    file = exact_file.OriginalFile(path)
    with pytest.raises(gcodec.Unsupported, match="tensor 'mask' has booleans above 1"):
        file.load(file.tensors[0], gcodec.Limits())
    run("encode", path, "-c", "lossless", code=3)


def test_limits_bound_each_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors({"w": ("F32", (20,))}))
    file = exact_file.OriginalFile(path)
    assert file.load(file.tensors[0], gcodec.Limits(max_bytes=80)).size == 20
    with pytest.raises(gcodec.LimitExceeded, match="tensor 'w' needs 80 bytes"):
        file.load(file.tensors[0], gcodec.Limits(max_bytes=79))


@pytest.mark.parametrize("cut", [0, 5, 7, 8, 20, -1, -2000])
def test_cut_files_are_truncated(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(TENSORS)[: cut or None] if cut else b"")
    with pytest.raises(gcodec.Truncated):
        exact_file.OriginalFile(path)
    with pytest.raises(gcodec.Truncated):
        open_dump(path)


@pytest.mark.parametrize("name", ("../x", "a/b", ".hidden", "", "c:d", "a\nb", " .."))
def test_names_of_files_stay_in_their_folder(name: str) -> None:
    with pytest.raises(gcodec.Corrupt, match="names the file"):
        exact_file.file_name(FILE_PREFIX + name)


@pytest.mark.parametrize(
    ("shape", "offsets", "message"),
    [
        ("[1e999]", "[0, 4]", "damaged"),
        ("[-1, -1]", "[0, 4]", "has the shape"),
        ("[1, -1]", "[0, 4]", "has the shape"),
        ("[1]", "[0.0, 4.0]", "damaged"),
        ('"12"', "[0, 8]", "damaged"),
        ("[3]", "[0, 8]", "has 8 bytes"),
        ("[0, 1180591620717411303424]", "[0, 0]", "no array has such a shape"),
        (str([1] * 33), "[0, 4]", "33 dimensions"),
    ],
)
def test_shapes_and_offsets_that_no_array_has_are_refused(
    shape: str, offsets: str, message: str
) -> None:
    text = f'{{"w": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'.encode()
    with pytest.raises(gcodec.FormatError, match=message):
        exact_file.tensors_of(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "3", "[]", '{"w": 3}', '{"w": {}}', "[" * 100_000),
        '{"w": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}',
        '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
    ],
)
def test_headers_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(gcodec.Corrupt, match="the header of the file is damaged"):
        exact_file.tensors_of(len(text).to_bytes(8, "little") + text.encode())


def test_names_of_tensors_that_frames_cannot_have_are_refused() -> None:
    for name, kind in (("\\ud800", gcodec.Corrupt), ("\\\\file:x", gcodec.Unsupported)):
        text = f'{{"{name}": {{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}}}'.encode()
        with pytest.raises(kind):
            exact_file.tensors_of(len(text).to_bytes(8, "little") + text)


def test_bytes_between_tensors_are_refused() -> None:
    for dtype, offsets in (("U8", [1, 3]), ("F8_E8M0", [0, -2])):
        header = {"w": {"dtype": dtype, "shape": [2], "data_offsets": offsets}}
        text = json.dumps(header).encode()
        with pytest.raises(gcodec.Corrupt, match="belong to no tensor"):
            exact_file.tensors_of(len(text).to_bytes(8, "little") + text)
