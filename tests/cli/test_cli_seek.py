"""`gcodec seek`, and seek tables in `verify` and `inspect`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import unary
from command_line import json_of, run

import gcodec
from gcodec.wire.seek import SeekTable

N = 10_000


@pytest.fixture(scope="module", autouse=True)
def codec() -> Iterator[None]:
    with unary.registered():
        yield


def test_stdin_and_stdout(tmp_path, source):
    """Bytes on stdin get the tables that the file gets."""
    run("seek", source, "-o", tmp_path / "b.gcf")
    result = run("seek", "-", "-o", "-", input=source.read_bytes())
    assert result.stdout_bytes == (tmp_path / "b.gcf").read_bytes()
    assert result.stderr.startswith("stdin -> stdout   ")
    assert "pass -o OUT" in run("seek", "-", input=b"", code=2).stderr
    run("seek", "-", "-o", f"{tmp_path}/", input=source.read_bytes())
    assert (tmp_path / "stdin.gcf").read_bytes() == (tmp_path / "b.gcf").read_bytes()


def frames_of(path):
    return list(gcodec.iter_frames(path.read_bytes()))


@pytest.fixture
def source(tmp_path):
    """Return a file of frames with words of variable length, and of other frames."""
    path = tmp_path / "a.gcf"
    frames = [
        gcodec.encode(unary.levels(N), "test-unary:form=dense", name="dense"),
        gcodec.encode(unary.levels(N).reshape(100, 100), "test-unary:form=sparse", name="sparse"),
        gcodec.encode(unary.levels(N), "raw", name="raw"),
        gcodec.encode(np.zeros(9, np.float32), "test-unary:form=sparse"),
        gcodec.encode(np.zeros(0, np.float32), "test-unary:form=dense"),
        gcodec.encode(unary.levels(5), "test-unary:form=dense", name="x\x1b"),
    ]
    path.write_bytes(b"".join(frames))
    return path


def test_tables_are_added_and_removed(tmp_path, source):
    with_tables, without = tmp_path / "b.gcf", tmp_path / "new" / "c.gcf"
    run("seek", source, "-o", with_tables)
    indexed = frames_of(with_tables)
    assert [frame.seek is not None for frame in indexed] == [True, True, False, False, False, True]
    assert indexed[0].seek.log2_block == 12 and indexed[0].seek.count == 3
    for frame, before in zip(indexed, frames_of(source), strict=True):
        assert frame.to_bytes() == before.with_seek().to_bytes()
        assert frame.payload.tobytes() == before.payload.tobytes()
        assert np.array_equal(frame.decode(), before.decode())
    run("seek", with_tables, "--strip", "-o", without)
    assert without.read_bytes() == source.read_bytes()
    for path in (source, with_tables):
        run("decode", path, "-o", tmp_path / f"{path.name}.npz")
    one, other = tmp_path / "a.gcf.npz", tmp_path / "b.gcf.npz"
    assert one.read_bytes() == other.read_bytes()


def test_tables_of_other_block_sizes_are_replaced(tmp_path, source):
    target = tmp_path / "b.gcf"
    run("seek", source, "-o", target, "--log2-block", "5")
    assert frames_of(target)[0].seek.count == -(-N // 32)
    again = target.read_bytes()
    run("seek", target, "-f", "--log2-block", "5")
    assert target.read_bytes() == again
    run("seek", target, "-f")
    assert target.read_bytes() == b"".join(f.with_seek().to_bytes() for f in frames_of(source))


def test_replacing_files_needs_force(tmp_path, source):
    before = source.read_bytes()
    other = tmp_path / "z.gcf"
    for args in ([source], [source, "--strip"], [tmp_path]):
        refused = run("seek", *args, code=2)
        assert refused.stderr == (
            f"gcodec: {source}: exists already; pass --force to replace it\n"
        )
    assert source.read_bytes() == before
    other.write_bytes(before)
    if os.name == "posix":
        source.chmod(0o640)
    run("seek", tmp_path, "--force")
    assert source.read_bytes() == other.read_bytes() != before
    assert os.name != "posix" or source.stat().st_mode & 0o777 == 0o640
    run("seek", tmp_path, "--strip", "--force", "--quiet")
    assert source.read_bytes() == other.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [source, other]
    run("seek", source, other, "-o", tmp_path / "folder/")
    assert {p.name for p in (tmp_path / "folder").iterdir()} == {"a.gcf", "z.gcf"}
    odd = tmp_path / "odd.bin"
    odd.write_bytes(before)
    assert "odd.bin: exists" in run("seek", odd, code=2).stderr


def test_summary_and_json(tmp_path, source):
    target = tmp_path / "b.gcf"
    nbytes = sum(f.with_seek().nbytes for f in frames_of(source))
    tables = [f.with_seek().seek for f in frames_of(source)]
    seek_nbytes = sum(table.nbytes for table in tables if table is not None)
    payload_nbytes = sum(f.payload.data.size for f in frames_of(source))
    shown = run("seek", source, "-o", target).stdout
    assert shown.startswith(f"{source} -> {target}   6 frames   3 seek tables, {seek_nbytes} B, ")
    assert shown.endswith(" % of payload\n")
    document = json_of("seek", source, "-fo", target)
    assert document == {
        "schema": "gcodec.seek/1",
        "log2_block": None,
        "strip": False,
        "files": [
            {
                "input": str(source),
                "output": str(target),
                "frames": 6,
                "bytes": nbytes,
                "payload_bytes": payload_nbytes,
                "seek_tables": 3,
                "seek_bytes": seek_nbytes,
            }
        ],
        "errors": [],
        "exit_code": 0,
    }
    assert target.stat().st_size == nbytes
    assert run("seek", target, "--strip", "-f").stdout.endswith("6 frames   0 seek tables\n")
    document = json_of("seek", target, "--strip", "-f")
    assert (document["log2_block"], document["strip"]) == (None, True)
    assert document["files"][0]["bytes"] == source.stat().st_size
    assert run("seek", target, "-fq").output == ""


def test_usage_errors(tmp_path, source):
    for args in (["--strip", "--log2-block", "3"], ["--log2-block", "63"], ["--log2-block", "-1"]):
        run("seek", source, "-f", *args, code=2)
    assert "no such file" in run("seek", tmp_path / "no.gcf", code=2).stderr
    assert "no .gcf file here" in run("seek", Path(__file__).parents[1], code=2).stderr
    assert "--max-elems 10000" in run("seek", source, "-f", "--max-elems", "9999", code=4).stderr


def test_damaged_file_is_not_changed(tmp_path, source):
    good = source.read_bytes()
    for at, match in ((len(good) - 1, "checksum"), (len(good) - 10, "frame 5")):
        damaged = bytearray(good)
        damaged[at] ^= 1
        source.write_bytes(damaged)
        for options in ([], ["--strip"]):
            refused = run("seek", source, "-f", *options, code=1)
            assert "gcodec: " in refused.stderr and match in refused.stderr
            assert source.read_bytes() == damaged
    assert list(tmp_path.iterdir()) == [source]


def test_payload_without_valid_words_is_reported_with_its_offset(tmp_path):
    frame = gcodec.Frame.from_bytes(
        gcodec.encode(unary.levels(9), "test-unary:form=dense", name="w")
    )
    data = frame.payload.data.copy()
    data[0] ^= 1
    forged = gcodec.Frame(frame.codec, "float32", (9,), frame.payload._replace(data=data), "w")
    path = tmp_path / "a.gcf"
    path.write_bytes(forged.to_bytes())
    place = len(forged.header())
    expected = f"gcodec: {path}: frame 0 'w': preamble or padding (at byte {place})\n"
    assert run("seek", path, "-f", code=1).stderr == expected
    run("seek", path, "-f", "--strip")


def test_verify_checks_tables(tmp_path, source):
    assert "seek" not in run("verify", source).stdout
    target = tmp_path / "b.gcf"
    run("seek", source, "-o", target)
    sizes = [frame.seek.nbytes for frame in frames_of(target) if frame.seek is not None]
    assert f"   3 seek tables, {sum(sizes)} B, " in run("verify", target).stdout
    (file,) = json_of("verify", target)["files"]
    assert (file["seek_tables"], file["seek_bytes"]) == (3, sum(sizes))
    frame = frames_of(target)[0]
    lengths = frame.seek.lengths.copy()
    lengths[0] += 1
    lengths[1] -= 1
    wrong = frame.payload._replace(seek=SeekTable(12, lengths))
    lying = gcodec.Frame(frame.codec, frame.dtype, frame.shape, wrong, "w")
    target.write_bytes(source.read_bytes() + lying.to_bytes())
    start = source.stat().st_size + len(lying.header())
    refused = run("verify", target, code=1)
    assert "frame 6 'w': " in refused.stderr and f"(at byte {start})" in refused.stderr


def test_inspect_shows_seek_tables(tmp_path, source):
    assert "seek" not in run("inspect", source).stdout
    target = tmp_path / "b.gcf"
    run("seek", source, "-o", target)
    frames = frames_of(target)
    lines = run("inspect", target).stdout.splitlines()
    assert lines[1].split()[-2:] == ["seek", "table"]
    sizes = [frame.seek.nbytes if frame.seek else 0 for frame in frames]
    dense = next(line for line in lines if line.startswith("dense"))
    assert f"3 x 2^12 elements, {sizes[0]} B, " in dense and dense.rstrip().endswith(
        "% of payload"
    )
    sparse = next(line for line in lines if line.startswith("sparse"))
    assert f"x 2^12 values, {sizes[1]} B, " in sparse
    assert lines[4].startswith("raw") and "2^12" not in lines[4]
    assert f"{sum(sizes)} B, " in lines[-1]
    (file,) = json_of("inspect", target)["files"]
    assert [frame["seek_bytes"] for frame in file["frames"]] == sizes
    assert file["total"]["seek_bytes"] == sum(sizes)
    assert file["frames"][2]["seek"] is None
    assert file["frames"][0]["seek"] == {
        "log2_block": 12,
        "counts": "elements",
        "entries": 3,
        "bytes": sizes[0],
        "share": sizes[0] / frames[0].payload.data.size,
    }
    for frame in file["frames"]:
        parts = ("header_bytes", "payload_bytes", "checksum_bytes")
        assert frame["bytes"] == sum(frame[part] for part in parts)
    shown = run("inspect", target, "-L", "raw").stdout
    assert "seek" not in shown


def test_stdout(source):
    expected = source.with_name("b.gcf")
    run("seek", source, "-o", expected)
    result = run("seek", source, "-o", "-")
    assert result.stdout_bytes == expected.read_bytes()
    assert result.stderr.startswith(f"{source} -> stdout   6 frames   ")
    assert "exclude each other" in run("seek", source, "-o", "-", "--json", code=2).stderr
