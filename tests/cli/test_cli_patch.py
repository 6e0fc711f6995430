"""``gcodec diff`` and ``gcodec apply``: files come back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import json_of, run

SIZES = {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "F16": 2, "F64": 8}
TENSORS = {
    "b.weight": ("BF16", (300, 20)),
    "a.weight": ("F32", (11, 70)),
    "ids": ("I64", (5,)),
    "mask": ("BOOL", (9,)),
    "small": ("F8_E4M3", (6, 4)),
    "empty": ("F16", (0, 3)),
    "scalar": ("F64", ()),
}


def safetensors(parts: dict[str, bytes], step: int, blanks: int = 3) -> bytes:
    """Return a file with metadata and blanks after its header."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    data = b""
    for name, part in parts.items():
        dtype, shape = TENSORS.get(name, ("I64", (2,)))
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode() + b" " * blanks
    return len(text).to_bytes(8, "little") + text + data


def checkpoints() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the tensors of two steps: few bytes differ, and a tensor is new."""
    rng, old = np.random.default_rng(1), dict[str, bytes]()
    for name, (dtype, shape) in TENSORS.items():
        count = int(np.prod(shape, dtype=int)) * SIZES[dtype]
        part = rng.integers(0, 2 if dtype == "BOOL" else 256, count, np.uint8)
        old[name] = part.tobytes()
    new = {name: bytearray(part) for name, part in reversed(old.items())}
    for name in ("b.weight", "a.weight", "small", "scalar"):
        new[name][0] ^= 1
    return old, {"added": bytes(16)} | {name: bytes(part) for name, part in new.items()}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    old, new = checkpoints()
    paths = tuple(tmp_path / name for name in ("old.safetensors", "new.safetensors", "s.gcf"))
    paths[0].write_bytes(safetensors(old, 1))
    paths[1].write_bytes(safetensors(new, 2, blanks=8))
    return paths[0], paths[1], paths[2]


def test_new_file_comes_back_byte_for_byte(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    result = run("diff", old, new, "-o", step)
    assert "8 tensors" in result.output and "5 of them whole" in result.output
    assert step.stat().st_size < 0.1 * new.stat().st_size
    back = tmp_path / "back.safetensors"
    assert "8 tensors" in run("apply", step, old, "-o", back).output
    assert back.read_bytes() == new.read_bytes()
    run("apply", step, old, "-o", old, code=2)  # which exists
    run("apply", step, old, "-o", old, "--force")
    assert old.read_bytes() == new.read_bytes()


def test_documents(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    document = json_of("diff", old, new, "-o", step)
    assert (document["tensors"], document["whole"], document["values"]) == (8, 5, 6811)
    assert document["raw_nbytes"] == sum(map(len, checkpoints()[1].values()))
    assert document["nbytes"] == step.stat().st_size
    back = tmp_path / "back.safetensors"
    document = json_of("apply", step, old, "-o", back)
    assert document["bytes"] == new.stat().st_size and document["tensors"] == 8


def test_wrong_base_and_damage_leave_no_file(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    old, new, step = files
    run("diff", old, new, "-o", step)
    back = tmp_path / "back.safetensors"
    assert "base has the digest" in run("apply", step, new, "-o", back, code=2).stderr
    assert not back.exists()
    data = bytearray(step.read_bytes())
    data[-30] ^= 1
    step.write_bytes(data)
    run("apply", step, old, "-o", back, code=1)
    run("verify", step, code=1)
    assert not back.exists()
    other = tmp_path / "other.safetensors"
    other.write_bytes(safetensors({"other": bytes(16)}, 1))
    run("diff", old, new, "-o", step, "--force")
    assert "has no tensor" in run("apply", step, other, "-o", back, code=2).stderr
    assert "no file that gcodec diff wrote" in run("apply", new, old, "-o", back, code=2).stderr


def test_other_verbs_read_the_file(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    run("diff", old, new, "-o", step)
    run("verify", step)
    assert "patch" in run("inspect", step).output
    shown = run("dissect", step).output
    assert "digest of the base" in shown
    refused = run("decode", step, "-o", tmp_path / "x.safetensors", code=3)
    assert "gcodec apply applies it to its base" in refused.stderr
    refused = run("encode", old, "-c", "patch", "-o", tmp_path / "x.gcf", code=2)
    assert "use gcodec diff OLD NEW" in refused.stderr
    assert not (tmp_path / "x.safetensors").exists()


def test_model_in_shards(tmp_path: Path) -> None:
    parts = checkpoints()
    for folder, tensors in zip(("old", "new"), parts, strict=True):
        (tmp_path / folder).mkdir()
        names = ["m-1.safetensors", "m-2.safetensors"]
        # Tensors may move to another shard.
        halves = [dict(list(tensors.items())[:4]), dict(list(tensors.items())[4:])]
        weights = {name: names[k] for k in (0, 1) for name in halves[k]}
        for name, half in zip(names, halves, strict=True):
            (tmp_path / folder / name).write_bytes(safetensors(half, 1))
        index = tmp_path / folder / "m.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weights}))
    old, new = (tmp_path / folder / "m.safetensors.index.json" for folder in ("old", "new"))
    run("diff", old, new, "-o", tmp_path / "s.gcf")
    run("apply", tmp_path / "s.gcf", old, "-o", tmp_path / "back")
    for path in (tmp_path / "new").iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    # A folder stands for the index in it.
    run("diff", old.parent, new.parent, "-o", tmp_path / "same.gcf")
    assert (tmp_path / "same.gcf").read_bytes() == (tmp_path / "s.gcf").read_bytes()
    run("diff", old.parent, new.parent)
    run("apply", new.parent / "m.gcf", old.parent, "-o", tmp_path / "again")
    run("diff", new.parent, old.parent)  # although the new folder also contains the difference
    other = tmp_path / "other"
    other.mkdir()
    for problem in (
        "no .safetensors file here",
        "contains 2 .safetensors files: pass one",
    ):
        refused = run("diff", other, new, "-o", tmp_path / "n.gcf", code=2)
        assert refused.stderr == f"gcodec: {other}: {problem}\n"
        for name in ("1.safetensors", "2.safetensors"):
            (other / name).write_bytes(safetensors({}, 1))
    # An error leaves no folder, and none gets the name of a file.
    refused = run("apply", tmp_path / "s.gcf", new.parent, "-o", tmp_path / "wrong", code=2)
    assert "base has the digest" in refused.stderr
    run("decode", tmp_path / "s.gcf", "-o", tmp_path / "wrong", code=3)
    assert not (tmp_path / "wrong").exists()
    target = tmp_path / "model.safetensors"
    refused = run("apply", tmp_path / "s.gcf", old.parent, "-o", target, code=2)
    assert "OUT must be a directory for a model in shards" in refused.stderr
    assert not target.exists()


def test_step_from_standard_input(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    run("diff", old, new, "-o", step)
    back = tmp_path / "back.safetensors"
    run("apply", "-", old, "-o", back, input=step.read_bytes())
    assert back.read_bytes() == new.read_bytes()
    assert "stdin has no name" in run("apply", "-", old, code=2, input=step.read_bytes()).stderr


def test_original_files_are_not_read_from_standard_input(files: tuple[Path, Path, Path]) -> None:
    old, new, step = files
    refusal = "gcodec: -: must be a .safetensors file, or the index of a model, not stdin\n"
    for pair in (["-", new], [old, "-"]):
        assert run("diff", *pair, "-o", step, code=2, input=b"").stderr == refusal
    run("diff", old, new, "-o", step)
    assert run("apply", step, "-", "-o", old, "-f", code=2, input=b"").stderr == refusal


def test_comparison_with_lossless_frames(files: tuple[Path, Path, Path]) -> None:
    old, new, step = files
    run("encode", old, "-c", "lossless", "-o", step)
    assert "skipped" not in run("compare", old, step, "--max-nmse", 0).stderr
    assert "only in A" in run("compare", new, step, code=1).stdout


def test_comparison_with_lossless_frames_passes_over_all_other_dtypes(tmp_path: Path) -> None:
    old, step = tmp_path / "old.safetensors", tmp_path / "step.gcf"
    header = {
        "complex": {"dtype": "C64", "shape": [3], "data_offsets": [0, 24]},
        "halves": {"dtype": "F4", "shape": [4, 4], "data_offsets": [24, 32]},
        "w": {"dtype": "F32", "shape": [2], "data_offsets": [32, 40]},
    }
    text = json.dumps(header).encode()
    old.write_bytes(len(text).to_bytes(8, "little") + text + bytes(40))
    run("encode", old, "-c", "lossless", "-o", step)
    for pair in ((old, step), (step, old)):
        skipped = "skipped, as no frame can store them: complex, halves\n"
        assert skipped in run("compare", *pair).stderr


def test_index_that_cannot_be_read_is_named_for_its_folder(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Its shards are listed in its place, which several files for one output do not explain."""
    old, new, step = files
    folder = tmp_path / "model"
    folder.mkdir()
    for number, path in enumerate((old, new)):
        (folder / f"{number}.safetensors").write_bytes(path.read_bytes())
    index = folder / "model.safetensors.index.json"
    for text, reason, code in (
        ("{", "index is not JSON", 3),
        (
            json.dumps({"weight_map": dict.fromkeys(map(str, range(65537)), "0.safetensors")}),
            "more than 65536 tensors in one index",
            4,
        ),
    ):
        index.write_text(text)
        for args in (["encode", folder, "-c", "lossless"], ["diff", folder, new]):
            refused = run(*args, "-o", step, code=code)
            assert refused.stderr == f"gcodec: {index}: {reason}\n"
    index.unlink()
    several = run("encode", folder, "-c", "lossless", "-o", step, code=2).stderr
    assert several == f"gcodec: {step}: OUT must be a directory for 2 files\n"


def test_damage_names_its_file(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    run("diff", old, new, "-o", step)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"x" * 99)
    expected = f"gcodec: {damaged}: the header has {int.from_bytes(b'x' * 8, 'little')} bytes\n"
    for args in (["diff", damaged, new], ["diff", old, damaged], ["apply", step, damaged]):
        back = tmp_path / ("back.gcf" if args[0] == "diff" else "back.safetensors")
        refused = run(*args, "-o", back, code=3)
        assert refused.stderr == expected
        document = json_of(*args, "-o", back, code=3)
        assert [error["file"] for error in document["errors"]] == [str(damaged)]
        assert not back.exists()


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.pt", "x.bin", "x.gcf"])
def test_other_formats_are_refused_by_their_names(
    files: tuple[Path, Path, Path], tmp_path: Path, name: str
) -> None:
    old, new, step = files
    run("diff", old, new, "-o", step)
    other = tmp_path / name
    other.write_bytes(bytes(99))
    expected = f"gcodec: {other}: must be a .safetensors file, or the index of a model\n"
    for args in (["diff", other, new], ["diff", old, other], ["apply", step, other]):
        assert run(*args, "-o", "-", code=2).stderr == expected
    sharded = Path(__file__).parents[1] / "dumps" / "sharded"  # of torch.distributed.checkpoint
    refused = run("diff", sharded, new, "-o", "-", code=2)
    assert refused.stderr == expected.replace(str(other), str(sharded))
    refused = run("apply", old, step, code=2)
    assert refused.stderr == (
        f"gcodec: {old}: is no file that gcodec diff wrote; it comes after {step}\n"
    )
    out = tmp_path / "out.npz"
    refused = run("apply", step, old, "-o", out, code=2)
    assert refused.stderr == f"gcodec: {out}: OUT must be a file named .safetensors\n"
    assert not out.exists()


@pytest.mark.parametrize("verb", ["encode", "inspect", "bench"])
def test_other_verbs_refuse_the_codec(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones(3, np.float32))
    refused = run(verb, path, "-c", "patch", code=2)
    assert refused.stderr.endswith("codec: patch needs a base; use gcodec diff OLD NEW\n")


def test_frames_have_tags_of_a_key(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    old, new, step = files
    key, other, back = (tmp_path / name for name in ("key", "other", "back.safetensors"))
    key.write_bytes(b"secret")
    other.write_bytes(b"another secret")
    run("diff", old, new, "-o", step, "--key-file", key)
    result = run("apply", step, old, "-o", back, "--key-file", other, code=1)
    assert "tag" in result.stderr and not back.exists()
    run("apply", step, old, "-o", back, "--key-file", key)
    assert back.read_bytes() == new.read_bytes()
    run("verify", step, "--key-file", key)
    run("diff", old, new, "-o", step, "--force")
    assert "tag" in run("apply", step, old, "--key-file", key, "--force", code=1).stderr
