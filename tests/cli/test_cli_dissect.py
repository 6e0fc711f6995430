"""`gcodec dissect`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import command_line
import numpy as np
import pytest

import gcodec
from gcodec.feedback import derive_seed
from gcodec.frame import crc32c
from gcodec.tensorfiles.dumps import open_dump

ROOT = Path(__file__).parents[2]
X = np.array([3, 0, -4, 0], np.float32)
EVIL = "[red]x[/red]\x1b[31m\n\u202e"


run = partial(command_line.run, "dissect")
document = partial(command_line.json_of, "dissect")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step.gcf"
    frames = [
        gcodec.encode(X, "qsgd:s=4,form=sparse", seed=1, name="first"),
        gcodec.encode(X, "qsgd:s=4,form=dense", seed=1, name="second"),
        gcodec.encode(X.astype(np.float16), "topk:k=2,index=bitmap", name=EVIL),
    ]
    path.write_bytes(b"".join(frames))
    return path


def test_fields_of_the_worked_example(file: Path) -> None:
    result = run(file, "-L", "first")
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    # Gap 1, +, level 2; gap 2, -, level 3: 0 0 100, 100 1 110.
    assert shown[-11:-1] == [
        "0x0014 32 header checksum " + " ".join(shown[-11].split()[4:]),
        "0x0018 32 [0] norm 40 a0 00 00 5 bucket 0",
        "0x001c 1 [0] gap 0 1 → element 0",
        "0x001c.1 1 [0] sign 0 +",
        "0x001c.2 3 [0] level 10 0 2 → 2.5",
        "0x001c.5 3 [1] gap 10 0 2 → element 2",
        "0x001d 1 [1] sign 1 -",
        "0x001d.1 3 [1] level 11 0 -3 → -3.75",
        "0x001d.4 4 fill 0000 0 zeros to a whole byte",
        "0x001e 32 payload checksum ae 6d 15 fe fe156dae CRC-32C of the payload: correct",
    ]
    assert "index 4 · sign 2 · level 6 · table 0 · pad 4 · norm 32" in result.stdout


def test_totals_count_all_bits_of_the_file(file: Path) -> None:
    dissected = document(file, "--full")
    assert dissected["bits"] == sum(dissected["totals"].values()) == 8 * file.stat().st_size
    assert {"header", "index", "sign", "level", "table", "pad"} <= dissected["totals"].keys()
    at = 0
    for number, frame in enumerate(dissected["frames"]):
        assert frame["number"] == number and 8 * frame["start"] == at
        for field in frame["fields"]:
            start, stop = field["bits"]
            byte, _, bit = field["offset"].partition(".")
            assert start == at == 8 * int(byte, 16) + int(bit or 0)
            at = stop
        assert at == 8 * frame["end"] and frame["bits"] == sum(frame["totals"].values())
        assert frame["error"] is None
    values = {
        element: value
        for field in dissected["frames"][1]["fields"]
        if "decoded" in field
        for element, value in enumerate(field["decoded"], field["element"])
    }
    assert [values[i] for i in range(4)] == [2.5, 0, -3.75, 0]


def test_names_are_escaped(file: Path) -> None:
    result = run(file)
    assert "\x1b" not in result.stdout and "\u202e" not in result.stdout
    assert "[red]x[/red]\\x1b[31m\\n\\u202e" in result.stdout
    assert document(file)["frames"][2]["name"] == EVIL


def test_frames_and_offsets_are_selected(file: Path) -> None:
    dissected = document(file, "-L", "second")
    assert [frame["name"] for frame in dissected["frames"]] == ["second"]
    first = dissected["frames"][0]["fields"][-3]["bits"][0]
    place = f"{first // 8:#x}.{first % 8}"
    later = document(file, "--at", place)
    assert [frame["number"] for frame in later["frames"]] == [1, 2]
    assert later["frames"][0]["fields"][0]["bits"][0] == first
    assert later["frames"][0]["totals"] == dissected["frames"][0]["totals"]
    assert f"{first // 8:#06x}" in run(file, "--at", first // 8).stdout


def test_limit_and_digits(file: Path) -> None:
    few = run(file, "-L", "second", "--limit", "1").stdout
    assert "3 more" in few and "[1] level" not in few
    assert "01000111 01000011 01000110" in run(file, "--bits").stdout
    assert " 0x6 " in run(file, "-L", "second", "--hex").stdout  # 110, the word of level 2
    assert document(file, "--limit", "0")["totals"] == document(file, "--full")["totals"]


def test_output_ends_at_damage(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    frame = gcodec.encode(X, "qsgd:s=4,form=sparse", seed=1, name="first")
    data[len(frame) - 6] = 0xB4  # a gap of 65 bits
    broken = tmp_path / "broken.gcf"
    broken.write_bytes(data)
    result = run(broken, code=1)
    assert "[0] norm" in result.stdout and "payload checksum" not in result.stdout
    assert f"{len(frame) - 6:#06x}" in result.stdout.splitlines()[-2]
    assert "!!" in result.stdout.splitlines()[-2]
    assert result.stderr.startswith(f"gcodec: {broken}: frame 0 'first': ")
    dissected = document(broken, code=1)
    assert dissected["frames"][0]["error"]["offset"] == f"{len(frame) - 6:#06x}"
    assert dissected["errors"][0]["offset"] == len(frame) - 6
    # Only the checksum detects this error.
    data = bytearray(file.read_bytes())
    data[len(frame) - 1] ^= 1
    broken.write_bytes(data)
    result = run(broken, code=1)
    assert "the payload checksum is wrong: it should be" in result.stderr


@pytest.mark.parametrize("size", [1, 5, 20, 30])
def test_truncated_files(file: Path, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.gcf"
    cut.write_bytes(file.read_bytes()[:size])
    dissected = document(cut, code=1)
    assert dissected["frames"][0]["error"]["kind"] == "Truncated"
    assert dissected["bits"] <= 8 * size


def test_files_that_contain_no_frame(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"")
    assert "empty" in run(path, code=1).stderr
    assert document(path, code=1)["frames"] == []
    path.write_bytes(b"PK\x03\x04")
    assert "not a frame" in run(path, code=1).stderr
    assert "no such file" in run(tmp_path / "none", code=2).stderr
    frame = bytearray(gcodec.encode(X, "sign"))
    frame[3] = 2
    path.write_bytes(frame)
    assert "frame version 2" in run(path, code=3).stderr


def test_bad_arguments(file: Path) -> None:
    assert "no frame matches" in run(file, "-L", "none", code=2).stderr
    assert "the file has" in run(file, "--at", 10**6, code=2).stderr
    for wrong in ("x", "1.8", "-1", "1.x"):
        assert "byte and bit" in run(file, "--at", wrong, code=2).stderr


def test_limits_and_stdin(file: Path) -> None:
    result = run(file, "--max-elems", "3", code=4)
    assert "header checksum" in result.stdout and "--max-elems 4" in result.stderr
    result = run("-", input=file.read_bytes())
    assert result.stdout.splitlines()[1:] == run(file).stdout.splitlines()[1:]


def test_tags(tmp_path: Path) -> None:
    path, key = tmp_path / "tagged.gcf", tmp_path / "key"
    path.write_bytes(gcodec.encode(X, "sign", key=b"secret"))
    key.write_bytes(b"secret")
    assert "not checked without its key" in run(path).stdout
    assert (
        "BLAKE2b of the preceding bytes of the frame: correct"
        in run(path, "--key-file", key).stdout
    )
    key.write_bytes(b"other")
    assert "the tag of this key" in run(path, "--key-file", key, code=1).stderr


def test_payloads_of_unselected_frames_are_not_read(tmp_path: Path) -> None:
    """Most of the file is a hole that exceeds the memory."""
    head = bytearray(gcodec.encode(np.zeros(8, np.float32), "raw", name="w"))
    start = len(head) - 4 - 32 - 4 - 2  # the field with the bits of the payload, 256
    nbits = b"\x80\x80\x80\x80\x80\x02"  # 2^36
    large = bytes(head[:start]) + nbits
    large += crc32c(large)
    small = gcodec.encode(X, "sign", name="last")
    path = tmp_path / "large.gcf"
    with path.open("wb") as file:
        file.write(large)
        file.seek(2**33 + 4, 1)
        file.write(small)
    dissected = document(path, "-L", "last")
    assert [frame["name"] for frame in dissected["frames"]] == ["last"]
    assert dissected["bits"] == 8 * len(small)


# --- docs/dissect.md


def test_example_file_matches_encode() -> None:
    specs = {"fc.bias": "qsgd:s=4", "fc.weight": "minifloat:code=rans,table=empirical"}
    frames = []
    with open_dump(ROOT / "examples" / "resnet8_digits_step0300.safetensors") as dump:
        for entry in dump.entries:
            if spec := specs.get(entry.name):
                seed = derive_seed(0, name=entry.name)
                frames.append(gcodec.encode(dump.load(entry), spec, seed=seed, name=entry.name))
    assert (ROOT / "examples" / "fc.gcf").read_bytes() == b"".join(frames)
