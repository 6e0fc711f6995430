"""Read, find and write files of tensors."""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from example_files import DUMP as EXAMPLE
from example_files import ROOT
from safetensors.numpy import save as save_tensors
from safetensors.numpy import save_file

from gcodec.errors import Corrupt, LimitExceeded, ParameterError, Truncated, Unsafe, Unsupported
from gcodec.limits import Limits
from gcodec.tensorfiles.atomic import AtomicFiles, atomic_write
from gcodec.tensorfiles.dumps import Entry, find, open_dump, write_dump

DATA = ROOT / "tests" / "data"
BF16 = np.dtype(ml_dtypes.bfloat16)


def load_all(path, limits=None):
    with open_dump(path, limits=limits) as dump:
        arrays = {entry.name: dump.load(entry) for entry in dump.entries}
        for entry in dump.entries:
            assert arrays[entry.name].dtype.name == entry.dtype
            assert arrays[entry.name].shape == entry.shape
            assert arrays[entry.name].dtype.isnative
            assert arrays[entry.name].flags.writeable
    return arrays


def assert_same(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


def samples():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(3, 4, 5))
    return {
        "f32": values.astype(np.float32),
        "f16.x": values.astype(np.float16),
        "f64": values,
        "bf16": values.astype(BF16),
        "bf16 scalar": np.asarray(1.5, BF16),
        "bf16 empty": np.zeros((0, 3), BF16),
        "scalar": np.asarray(2.5, np.float32),
        "empty": np.zeros((2, 0, 3), np.float32),
        "fortran": np.asfortranarray(values[0].astype(np.float32)),
        "step": values[:, ::2].astype(np.float32)[:, ::-1],
        "bool": values > 0,
        "bool scalar": np.asarray(True),
        "i8": np.arange(-3, 3, dtype=np.int8),
        "u16": np.arange(5, dtype=np.uint16),
        "u64": np.array([2**64 - 1], np.uint64),
        "i64": np.array([-(2**63)]),
        "c64": values.astype(np.complex64) * 1j,
        "name/with \x1b[31m, ü and 漢": np.ones(1, np.float32),
    }


# --- the real files


@pytest.mark.parametrize("suffix", ["npz", "pt"])
def test_formats_of_real_file_agree(suffix):
    want = load_all(EXAMPLE)
    got = load_all(DATA / f"resnet8_digits_step0300.{suffix}")
    assert got.keys() == want.keys()
    assert sum(array.size for array in want.values()) == 77_754
    for name, array in want.items():
        assert_same(got[name], array)


def test_real_bfloat16_file_equals_rounded_file():
    want = load_all(EXAMPLE)
    got = load_all(DATA / "resnet8_digits_step0300_bf16.safetensors")
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert_same(got[name], array.astype(BF16))


def test_attributes():
    with open_dump(EXAMPLE) as dump:
        assert dump.path == EXAMPLE
        assert dump.format == "safetensors"
        assert dump.metadata["model"] == "resnet8_digits"
        assert Entry("conv1.weight", "float32", (16, 1, 3, 3)) in dump.entries
        assert "29 tensors" in repr(dump)
    for suffix in ("pt", "npz"):
        with open_dump(DATA / f"resnet8_digits_step0300.{suffix}") as dump:
            assert dump.format == suffix
            assert dump.metadata == {}


def test_listing_reads_only_headers(tmp_path, monkeypatch):
    write_dump(tmp_path / "big.npz", [("a", np.zeros(1 << 20)), ("b", np.zeros(1 << 20))])
    read = 0

    class Counting:
        def __init__(self, file):
            self.file = file

        def read(self, size):
            nonlocal read
            data = self.file.read(size)
            read += len(data)
            return data

        def __getattr__(self, name):
            return getattr(self.file, name)

    def counting_open(*args):
        return Counting(open(*args))

    monkeypatch.setattr("gcodec.tensorfiles.entries.open", counting_open, raising=False)
    with open_dump(tmp_path / "big.npz") as dump:
        assert [e.shape for e in dump.entries] == [(1 << 20,), (1 << 20,)]
    assert 0 < read < 100_000


# --- writing and reading back


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_round_trip(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    write_dump(path, samples().items())
    got = load_all(path)
    assert got.keys() == samples().keys()
    for name, array in samples().items():
        assert_same(got[name], array)
    first = path.read_bytes()
    write_dump(path, iter(samples().items()))
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == [path.name]


def test_numpy_and_safetensors_read_written_files(tmp_path):
    write_dump(tmp_path / "x.npz", samples().items())
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        for name, array in samples().items():
            got = archive[name]
            assert_same(got.view(BF16) if got.dtype == "V2" else got, array)
    from safetensors.numpy import load_file

    write_dump(tmp_path / "x.safetensors", samples().items())
    got = load_file(tmp_path / "x.safetensors")
    for name, array in samples().items():
        assert_same(got[name], array)


def test_safetensors_files_have_the_bytes_of_the_library(tmp_path):
    names = ["b", "a", "", "é", "\U0001f600", '\t"\\', "\x01\x7f\u2028", "/x", "x" * 300]
    tensors = samples() | {name: np.arange(3, dtype=np.float32) for name in names}
    tensors |= {"big": np.arange(4, dtype=">f8"), "f8": np.ones(3, ml_dtypes.float8_e5m2)}
    for chosen in (tensors, {}):
        write_dump(tmp_path / "x.safetensors", chosen.items())
        contiguous = {
            name: np.asarray(x, x.dtype.newbyteorder("="), order="C") for name, x in chosen.items()
        }
        assert (tmp_path / "x.safetensors").read_bytes() == save_tensors(contiguous)


def test_tensors_are_not_copied_to_be_written(tmp_path):
    tensor = np.zeros(1 << 20, np.float32)
    write_dump(tmp_path / "x.safetensors", [("w", tensor[:1])])  # imports
    tracemalloc.start()
    try:
        write_dump(tmp_path / "x.safetensors", [("w", tensor)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < tensor.nbytes / 4


def test_reads_numpy_files(tmp_path):
    arrays = {n: a for n, a in samples().items() if a.dtype != BF16}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    got = load_all(tmp_path / "x.npz")
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_same(got[name], array)


@pytest.mark.parametrize("name", sorted(samples()))
def test_npy(tmp_path, name):
    array = samples()[name]
    path = tmp_path / "one.npy"
    np.save(path, array.view("V2") if array.dtype == BF16 else array)
    assert_same(load_all(path)["one"], array)


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", ">c8", ">u8"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_big_endian(tmp_path, dtype, suffix):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    path = tmp_path / f"x.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    else:
        write_dump(path, [("x", array)])
    assert_same(load_all(path)["x"], array.astype(array.dtype.newbyteorder("=")))
    write_dump(tmp_path / "x.safetensors", [("x", array)])
    np.testing.assert_array_equal(load_all(tmp_path / "x.safetensors")["x"], array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, version):
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(6.0).reshape(2, 3).T, version=version)
    assert_same(load_all(tmp_path / "x.npy")["x"], np.arange(6.0).reshape(2, 3).T)


def test_unreadable_dtypes_are_listed(tmp_path):
    np.savez(
        tmp_path / "x.npz", o=np.array([{}], object), s=np.array(["a"]), d=np.zeros(2, "M8[s]")
    )
    record = np.zeros(2, [("a", "f4"), ("b", "i4")])
    np.savez(tmp_path / "y.npz", r=record, v=np.zeros(3, "V1"), ok=np.ones(3))
    with open_dump(tmp_path / "x.npz") as dump:
        assert [e.dtype for e in dump.entries] == ["object", "<U1", "<M8[s]"]
        for entry, kind in zip(dump.entries, (Unsafe, Unsupported, Unsupported), strict=True):
            with pytest.raises(kind):
                dump.load(entry)
    with open_dump(tmp_path / "y.npz") as dump:
        for entry in dump.entries[:2]:
            with pytest.raises(Unsupported):
                dump.load(entry)
        assert_same(dump.load(dump.entries[2]), np.ones(3))
    f8 = np.zeros(4, ml_dtypes.float8_e4m3fnuz)
    save_file({"f8": f8, "ok": np.ones(2)}, tmp_path / "z.safetensors")
    with open_dump(tmp_path / "z.safetensors") as dump:
        assert dump.entries == [Entry("f8", "float8_e4m3fnuz", (4,)), Entry("ok", "float64", (2,))]
        with pytest.raises(Unsupported, match="float8_e4m3fnuz"):
            dump.load(dump.entries[0])


def test_shards(tmp_path):
    save_file({"a": np.ones(2), "b": np.zeros(3)}, tmp_path / "m-1.safetensors", {"k": "1"})
    (tmp_path / "sub").mkdir()
    save_file({"c": np.full(4, 7.0), "extra": np.ones(1)}, tmp_path / "sub" / "m-2.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    weights = {"a": "m-1.safetensors", "c": "sub/m-2.safetensors", "b": "m-1.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    got = load_all(index)
    assert list(got) == ["a", "c", "b"]
    assert_same(got["c"], np.full(4, 7.0))
    assert find([str(tmp_path)]) == [index]
    assert find([tmp_path / "m-1.safetensors", index]) == [index]
    index.write_text(json.dumps({"weight_map": {"z": "m-1.safetensors"}}))
    with pytest.raises(Corrupt, match="has no tensor 'z'"):
        open_dump(index)
    index.write_text(json.dumps({"weight_map": {"z": "m-3.safetensors"}}))
    with pytest.raises(FileNotFoundError):
        open_dump(index)
    (tmp_path / "m-3.safetensors").write_bytes(b"\1")
    with pytest.raises(Truncated, match=r"shard 'm-3\.safetensors'"):
        open_dump(index)


# --- misuse


@pytest.mark.parametrize("value", [np.float32(2), ml_dtypes.float8_e4m3fn(2)], ids=["f32", "f8"])
def test_versions_of_a_file_are_not_mixed(tmp_path, value):
    """An index opens its shards again, and the reader opens files with floats of 8 bits again."""
    shards = {name: tmp_path / f"{name}.safetensors" for name in "ab"}

    def save(scale, size=5):
        for name, path in shards.items():
            with atomic_write(path) as file:
                file.write(save_tensors({name: np.full(size, scale * value, value.dtype)}))
            os.utime(path, (scale, scale))  # the clock of the file system may be too coarse

    save(1)
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: p.name for n, p in shards.items()}}))
    for size in (5, 6):
        save(1)
        with open_dump(shards["a"]) as single, open_dump(index) as dump:
            assert single.load(single.entries[0])[0] == dump.load(dump.entries[0])[0] == value
            save(3, size)
            with pytest.raises(Corrupt, match="the file changed while it was read"):
                single.load(single.entries[0])
            with pytest.raises(Corrupt, match=r"shard 'b\.safetensors': the file changed"):
                dump.load(dump.entries[1])


def test_tensors_that_the_index_lacks_are_named(tmp_path):
    write_dump(tmp_path / "a.safetensors", [("x", np.ones(2)), ("extra", np.ones(3))])
    write_dump(tmp_path / "b.safetensors", [("x", np.zeros(2)), ("y", np.ones(1))])
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with open_dump(index) as dump:
        assert [entry.name for entry in dump.entries] == ["x", "y"]
        assert dump.omitted == {"extra": "not in the index"}
        assert dump.load(dump.entries[0]).tolist() == [1, 1]


def test_misuse_of_dumps(tmp_path):
    (tmp_path / "x.txt").touch()
    with pytest.raises(ParameterError, match=r"x\.txt"):
        open_dump(tmp_path / "x.txt")
    for name in ("none.npz", "none.txt", "none"):
        with pytest.raises(FileNotFoundError, match=f"{name}'$"):
            open_dump(tmp_path / name)
    for suffix in ("npz", "npy", "pt", "safetensors"):
        (tmp_path / f"folder.{suffix}").mkdir()
        with pytest.raises(OSError):
            open_dump(tmp_path / f"folder.{suffix}")
    dump = open_dump(EXAMPLE)
    with pytest.raises(ParameterError, match="entry"):
        dump.load(Entry("conv1.weight", "float32", (1,)))
    with pytest.raises(ParameterError, match="entry"):
        dump.load("conv1.weight")
    dump.close()
    dump.close()
    with pytest.raises(ParameterError, match="closed"):
        dump.load(dump.entries[0])


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize(
    "tensors",
    [
        [("a", np.zeros(1)), ("a", np.zeros(1))],
        [(3, np.zeros(1))],
        [("a\0", np.zeros(1))],
        [("\ud800", np.zeros(1))],
        [("n" * 5000, np.zeros(1))],
        [("__metadata__", np.zeros(1))],
        [("a", np.array([None]))],
        [("a", np.array(["text"]))],
        [("a", np.zeros(1, ml_dtypes.float8_e5m2fnuz))],
        [("a", [1.0])],
    ],
)
def test_write_refuses_invalid_tensors(tmp_path, suffix, tensors):
    with pytest.raises(ParameterError):
        write_dump(tmp_path / f"x.{suffix}", tensors)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a\0", "__metadata__", "n" * 5000])
def test_refusal_of_a_name_states_what_is_allowed(tmp_path, name):
    allowed = "must be text of at most 4096 characters without NUL, other than __metadata__, once"
    with pytest.raises(ParameterError, match=f"name of a tensor=.*: {allowed}$"):
        write_dump(tmp_path / "x.safetensors", [(name, np.zeros(1))])


def test_write_refuses_suffix_and_dtype(tmp_path):
    with pytest.raises(ParameterError, match="path"):
        write_dump(tmp_path / "x.pt", [])
    with pytest.raises(ParameterError, match="dtype"):
        write_dump(tmp_path / "x.safetensors", [("a", np.zeros(1, np.complex128))])
    write_dump(tmp_path / "x.npz", [("a", np.zeros(1, np.complex128))])
    assert os.listdir(tmp_path) == ["x.npz"]


# --- find


def test_find(tmp_path, monkeypatch):
    for name in ("b.npz", "a.pt", "c.gcf", "notes.txt", "d.PTH"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "e.npy").touch()
    monkeypatch.chdir(tmp_path)
    names = ["a.pt", "b.npz", "c.gcf", "d.PTH"]
    assert find(["."]) == [Path(n) for n in names]
    assert find([str(tmp_path)]) == [tmp_path / n for n in names]
    assert find(["c.gcf", ".", "./a.pt"]) == [Path(n) for n in ("c.gcf", "a.pt", "b.npz", "d.PTH")]
    assert find(["*"]) == [Path(n) for n in names]
    assert find(["**/*.npy"]) == [Path("deep/er/e.npy")]
    assert find(["notes.txt"]) == [Path("notes.txt")]
    assert find([]) == []
    for pattern in ("none.npz", "*.zip", "deep", ""):
        with pytest.raises(ParameterError) as caught:
            find(["a.pt", pattern])
        assert repr(pattern) in str(caught.value)
    (tmp_path / "[1].npz").touch()
    assert find(["[1].npz"]) == [Path("[1].npz")]
    (tmp_path / "bad.safetensors.index.json").write_text("{")
    assert Path("bad.safetensors.index.json") in find(["."])

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert Path("bad.safetensors.index.json") in find(["."])


def test_globs_of_any_depth(tmp_path, monkeypatch):
    for name in ("a.npz", "run/b.npy", "run/one/c.npy", "run/one/c.txt", ".hidden/d.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    below = [Path("run/b.npy"), Path("run/one/c.npy")]
    assert find(["**"]) == [Path("a.npz"), *below]
    assert find(["**/*"]) == find(["./**"]) == find(["**/**"]) == find(["**"])
    assert find(["run/**"]) == find(["run/**/*.npy"]) == find(["**/*.npy"]) == below
    assert find([str(tmp_path / "r*" / "**")]) == [tmp_path / path for path in below]
    assert find(["**/one/*"]) == find(["**/one/**"]) == below[1:]
    assert find([".hidden/**"]) == [Path(".hidden/d.npy")]
    with pytest.raises(ParameterError):
        find(["none/**"])


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
def test_globs_of_any_depth_follow_no_links_to_directories(tmp_path, monkeypatch):
    for name in ("in/a.npy", "in/deep/b.npy", "outside/c.npy", "[x]/d.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "in" / "loop").symlink_to(".")
    (tmp_path / "in" / "deep" / "loop").symlink_to("..")
    (tmp_path / "in" / "out").symlink_to("../outside")
    (tmp_path / "in" / "file.npy").symlink_to("../outside/c.npy")
    (tmp_path / "link").symlink_to("in")
    monkeypatch.chdir(tmp_path)
    names = ["a.npy", "deep/b.npy", "file.npy"]
    for pattern in ("in/**", "in/**/*.npy", "in/**/**/*"):
        assert find([pattern]) == [Path("in", name) for name in names]
    assert find(["[[]x]/**"]) == [Path("[x]/d.npy")]
    # A link that the caller names is followed, as are links that other wildcards match.
    assert find(["link/**"]) == [Path("link", name) for name in names]
    assert find(["in/o*/*"]) == [Path("in/out/c.npy")]


# --- atomic_write


def test_atomic_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    for error in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(error), atomic_write(path) as file:
            file.write(b"new")
            raise error
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["x"]

    def interrupted():
        yield "a", np.zeros(3)
        raise KeyboardInterrupt

    for suffix in ("npz", "safetensors"):
        with pytest.raises(KeyboardInterrupt):
            write_dump(tmp_path / f"x.{suffix}", interrupted())
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_atomic_write_modes_and_links(tmp_path):
    path = tmp_path / "x"
    umask = os.umask(0o027)
    try:
        with atomic_write(path) as file:
            file.write(b"1")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        with atomic_write(path) as file:
            file.write(b"2")
            (temporary,) = tmp_path.glob(".gcodec-*")  # must not be open to those whom x excludes
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o664)
        with atomic_write(path) as file:
            file.write(b"2")
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    finally:
        os.umask(umask)
    link = tmp_path / "link"
    link.symlink_to(path)
    with atomic_write(link) as file:
        file.write(b"3")
    assert link.is_symlink()
    assert path.read_bytes() == b"3"
    with atomic_write("/dev/null") as file:
        file.write(b"4")
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)


def test_bytes_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
    """After a power failure, a file has its old bytes or the new ones."""
    calls, replace = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda number: calls.append(os.fstat(number).st_size))
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("replace") or replace(*paths))
    with atomic_write(tmp_path / "new") as file:
        file.write(b"12345")
    assert calls == [5, "replace"]


def test_new_files_disappear_if_another_one_cannot_appear(tmp_path):
    with pytest.raises(IsADirectoryError), AtomicFiles() as files:
        for name in ("first", "second"):
            files.open(tmp_path / name).write(b"12345")
        (tmp_path / "second").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_errors_of_atomic_write_name_the_file(tmp_path, monkeypatch):
    (tmp_path / "file").touch()

    def written(path):
        with pytest.raises(OSError) as caught, atomic_write(path) as file:
            file.write(b"1")
        assert caught.value.filename == os.fspath(path)
        assert os.fspath(path) in str(caught.value)
        assert ".gcodec" not in str(caught.value)
        return caught.type

    assert written(tmp_path / "no" / "x") is FileNotFoundError
    if os.name == "posix":
        assert written(tmp_path) is IsADirectoryError
        assert written(tmp_path / "file" / "x") is NotADirectoryError
        written(tmp_path / ("n" * 300))

    def fails(*arguments, **options):
        raise PermissionError(13, "Permission denied", *map(str, arguments))

    for owner, method in ((os, "replace"), (os, "fsync"), (Path, "chmod")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, fails)
            assert written(tmp_path / "file") is PermissionError
    assert os.listdir(tmp_path) == ["file"]


def test_files_of_a_group_appear_together(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("new", "old", "last")]
    paths[1].write_bytes(b"0")

    def write():
        with AtomicFiles() as files:
            for number, path in enumerate(paths, 1):
                files.open(path).write(b"%d" % number)
                assert sorted(os.listdir(tmp_path))[number:] == ["old"]

    own = os.replace

    def fails(source, target):
        if target == paths[2]:
            raise OSError(28, "No space left on device", str(source), None, str(target))
        own(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="No space left"):
            write()
    assert os.listdir(tmp_path) == ["old"]  # which cannot come back
    write()
    assert [path.read_bytes() for path in paths] == [b"1", b"2", b"3"]


@pytest.mark.skipif(os.name == "nt", reason="named pipes and POSIX permissions")
def test_safetensors_modes_and_pipes(tmp_path):
    # The library's own file writers use mode 0600, and replace a pipe by a file.
    umask = os.umask(0o027)
    try:
        write_dump(tmp_path / "x.safetensors", samples().items())
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "x.safetensors").stat().st_mode) == 0o640
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        got = pool.submit(pipe.read_bytes)
        write_dump(pipe, samples().items())
        assert got.result() == (tmp_path / "x.safetensors").read_bytes()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


# --- limits


def test_limits_values():
    assert Limits() == Limits(2**28, 2**31, None)
    for bad in ({"max_elements": 0}, {"max_bytes": 1.5}, {"max_elements": True}):
        with pytest.raises(ParameterError):
            Limits(**bad)
    for ratio in (0, -1, float("nan"), float("inf"), "2", True):
        with pytest.raises(ParameterError, match="max_ratio"):
            Limits(max_ratio=ratio)
    limits = Limits(10, 40, 2.5)
    limits.check("x", 10, 40, 16)
    limits.check("x", 10, 40)
    for args, word in (((11, 1), "max_elements=11"), ((1, 41), "max_bytes=41")):
        with pytest.raises(LimitExceeded, match=rf"gcodec\.Limits\({word}\)"):
            limits.check("x", *args)
    with pytest.raises(LimitExceeded, match=r"gcodec\.Limits\(max_ratio=3\)"):
        limits.check("x", 10, 40, 15)


@pytest.mark.parametrize("suffix", ["npz", "npy", "safetensors", "pt"])
def test_limits_apply_to_load(tmp_path, suffix):
    path = DATA / "resnet8_digits_step0300.pt"
    if suffix == "npy":
        path = tmp_path / "x.npy"
        np.save(path, np.zeros((64, 64), np.float32))
    elif suffix != "pt":
        path = tmp_path / f"x.{suffix}"
        write_dump(path, [("x", np.zeros((64, 64), np.float32))])
    for limits in (Limits(max_elements=9), Limits(max_bytes=36)):
        with open_dump(path, limits=limits) as dump, pytest.raises(LimitExceeded):
            for entry in dump.entries:
                dump.load(entry)


def test_limit_on_compression_ratio(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(10_000))
    load_all(tmp_path / "x.npz")
    with pytest.raises(LimitExceeded, match="max_ratio"):
        load_all(tmp_path / "x.npz", Limits(max_ratio=10))


# --- against PyTorch


def torch_or_skip():
    return pytest.importorskip("torch")


def flat(value, prefix=""):
    import torch

    if isinstance(value, torch.Tensor):
        yield prefix[:-1] or "tensor", value.detach()
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            yield from flat(child, f"{prefix}{key}.")


def assert_like_torch(path, saved):
    import torch

    got = load_all(path)
    want = dict(flat(saved))
    assert list(got) == list(want)
    for name, tensor in want.items():
        assert got[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        back = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert got[name].shape == tuple(tensor.shape)
        assert got[name].tobytes() == back


def test_torch_views_and_dtypes(tmp_path):
    torch = torch_or_skip()
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    saved = {
        "base": base,
        "tied": base,
        "row": base[1],
        "column": base[:, 2],
        "step": base[::2, 1:3, ::3],
        "transposed": base.transpose(0, 2),
        "expanded": torch.tensor([3.0]).expand(4, 5),
        "overlap": torch.arange(4.0).as_strided((2, 2), (0, 3)),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "empty view": base[:0],
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "requires": torch.ones(2, requires_grad=True),
        "nested": [{"x": torch.ones(1)}, (torch.zeros(2), None, 3, "text", 2.5, True)],
        7: torch.ones(1),
        "other": {"lr": 1e-3, "n": 2**40, "none": None, "size": torch.Size([2]), "d": torch.int8},
    }
    for name in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"):
        saved[name] = torch.arange(5).to(getattr(torch, name))
    for name in ("bool", "complex64", "complex128", "uint16", "uint32", "uint64"):
        saved[name] = torch.arange(5).to(getattr(torch, name))
    torch.save(saved, tmp_path / "x.pt")
    saved["other"].pop("size")
    assert_like_torch(tmp_path / "x.pt", saved)
    torch.save(base, tmp_path / "bare.pth")
    assert_like_torch(tmp_path / "bare.pth", base)


def test_torch_model_and_optimizer(tmp_path):
    torch = torch_or_skip()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(saved, tmp_path / "x.bin")
    assert_like_torch(tmp_path / "x.bin", saved)
    assert "optimizer.state.0.exp_avg" in load_all(tmp_path / "x.bin")


def test_torch_float8_is_listed(tmp_path):
    torch = torch_or_skip()
    torch.save(
        {"f8": torch.zeros(2).to(torch.float8_e4m3fnuz), "ok": torch.ones(1)}, tmp_path / "x.pt"
    )
    with open_dump(tmp_path / "x.pt") as dump:
        assert dump.entries[0] == Entry("f8", "float8_e4m3fnuz", (2,))
        with pytest.raises(Unsupported):
            dump.load(dump.entries[0])
        assert dump.load(dump.entries[1]) == 1


def test_unsupported_torch_files_are_refused(tmp_path):
    torch = torch_or_skip()
    path = tmp_path / "x.pt"
    torch.save(torch.nn.Linear(1, 1), path)
    with pytest.raises(Unsafe, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        open_dump(path)
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(Unsupported, match=r"torch\.save"):
        open_dump(path)
    torch.save({"a": torch.ones(1)}, path, pickle_protocol=4)
    with pytest.raises(Unsupported, match="protocol 2"):
        open_dump(path)
    torch.save({"a": torch.ones(1, dtype=torch.complex64).conj()}, path)
    with pytest.raises(Unsupported, match="conjugate"):
        open_dump(path)


def test_torch_without_checksums(tmp_path):
    torch = torch_or_skip()
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        whole = torch.arange(9.0)
        torch.save({"a": whole, "b": whole[4:]}, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    got = load_all(tmp_path / "x.pt")
    assert_same(got["a"], np.arange(9, dtype=np.float32))
    assert_same(got["b"], np.arange(4, 9, dtype=np.float32))


def test_repacked_torch_file(tmp_path):
    with (
        zipfile.ZipFile(DATA / "resnet8_digits_step0300.pt") as source,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    want = load_all(EXAMPLE)
    for name, array in load_all(tmp_path / "x.pt").items():
        assert_same(array, want[name])


def test_big_endian_torch_file(tmp_path):
    with (
        zipfile.ZipFile(DATA / "resnet8_digits_step0300.pt") as source,
        zipfile.ZipFile(tmp_path / "x.pt", "w") as target,
    ):
        for name in source.namelist():
            data = source.read(name)
            if "/data/" in name:
                data = struct.pack(
                    f">{len(data) // 4}I", *struct.unpack(f"<{len(data) // 4}I", data)
                )
            target.writestr(name, b"big" if name.endswith("byteorder") else data)
    want = load_all(EXAMPLE)
    for name, array in load_all(tmp_path / "x.pt").items():
        assert_same(array, want[name])
