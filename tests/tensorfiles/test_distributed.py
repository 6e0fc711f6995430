"""Folders of torch.distributed.checkpoint, strictly checked; and sparse tensors of torch.save."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from gcodec.errors import (
    Corrupt,
    FormatError,
    LimitExceeded,
    ParameterError,
    Truncated,
    Unsafe,
    Unsupported,
)
from gcodec.limits import Limits
from gcodec.tensorfiles import distributed_file
from gcodec.tensorfiles.dumps import find, open_dump
from gcodec.tensorfiles.unpickler import unpickle

DUMPS = Path(__file__).parents[1] / "dumps"
SHARDED = DUMPS / "sharded"


def load_all(path, limits=None):
    with open_dump(path, limits=limits) as dump:
        return {entry.name: dump.load(entry) for entry in dump.entries}


def test_shards_are_assembled():
    with open_dump(SHARDED) as dump:
        assert dump.format == "distcp"
        assert [path.name for path in dump.files] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
        assert {e.name: (e.dtype, e.shape) for e in dump.entries} == {
            "model.conv.weight": ("float32", (5, 4)),
            "model.fc.weight": ("bfloat16", (3, 6)),
            "model.one": ("float32", (1,)),
            "model.bias": ("float32", (3,)),
            "model.empty": ("float32", (0, 3)),
            "model.double": ("float64", (2, 2, 2)),
            "counter": ("int64", ()),
        }
    loaded, whole = load_all(SHARDED), load_all(DUMPS / "sharded.pt")
    assert loaded.keys() == whole.keys()
    for name, values in whole.items():
        assert loaded[name].dtype == values.dtype
        np.testing.assert_array_equal(loaded[name], values)


def test_pytorch_writes_what_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    dtypes = ("float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool")
    state = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in dtypes}
    state |= {"view": torch.arange(12.0).reshape(3, 4).T, "nested": {"list": [torch.ones(2)]}}
    state |= {"scalar": torch.tensor(1.5), "step": 7, "text": "x"}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=tmp_path / "step7", no_dist=True)
    loaded = load_all(tmp_path / "step7")
    assert loaded.keys() == {*dtypes, "view", "nested.list.0", "scalar"}
    for name in dtypes:
        assert loaded[name].dtype.name == name
        assert loaded[name].astype(float).tolist() == state[name].double().tolist()
    np.testing.assert_array_equal(loaded["view"], np.arange(12.0).reshape(3, 4).T)
    assert loaded["scalar"] == 1.5


def test_folder_is_one_dump(tmp_path):
    assert find([SHARDED]) == [SHARDED]
    for step in (1, 2):
        shutil.copytree(SHARDED, tmp_path / f"step{step}")
    assert find([tmp_path]) == [tmp_path / "step1", tmp_path / "step2"]
    assert find([str(tmp_path / "step*")]) == [tmp_path / "step1", tmp_path / "step2"]
    with pytest.raises(ParameterError, match=r"or a folder of \.distcp files"):
        open_dump(SHARDED / "__0_0.distcp")


def test_checkpoint_that_changes_is_refused(tmp_path):
    """A checkpoint may be saved to the folder of the preceding one, with the same layout."""
    folder = tmp_path / "latest"
    shutil.copytree(SHARDED, folder)
    with open_dump(folder) as dump:
        entries = {entry.name: entry for entry in dump.entries}
        dump.load(entries["model.conv.weight"])
        for name in ("__0_0.distcp", "__1_0.distcp"):
            shutil.copyfile(SHARDED / name, tmp_path / "new")
            os.replace(tmp_path / "new", folder / name)
        with pytest.raises(Corrupt, match="the file changed while it was read"):
            dump.load(entries["model.conv.weight"])


def test_limits_apply_to_the_whole_tensor():
    with pytest.raises(LimitExceeded, match="has 20 elements"):
        load_all(SHARDED, Limits(max_elements=19))


# --- metadata by hand

MODULE = "torch.distributed.checkpoint.metadata"
DTYPE = "torch.float32"


def text(value):
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def named(dotted):
    module, _, attribute = dotted.rpartition(".")
    return text(module) + text(attribute) + b"\x93"


def integer(value):
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def size(*counts):
    return named("torch.Size") + b"(" + b"".join(map(integer, counts)) + b"t\x85R"


def mapping(items):
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def record(name, **fields):
    state = mapping([(text(key), value) for key, value in fields.items()])
    return named(name) + b")\x81" + state + b"b"


ENCODING = named(f"{MODULE}._MEM_FORMAT_ENCODING")
MEMORY = ENCODING + integer(0) + b"\x85R"


def attribute(value, name):
    return named("builtins.getattr") + value + name + b"\x86R"


def properties(dtype, memory=MEMORY):
    layout = named("torch.serialization._get_layout") + text("torch.strided") + b"\x85R"
    state = b"(" + named(dtype) + layout + b"\x89" + memory + b"\x89t"
    return named(f"{MODULE}.TensorProperties") + b")\x81" + state + b"b"


def checkpoint(
    folder,
    *,
    chunks,
    shape=(5, 4),
    dtype=DTYPE,
    memory=MEMORY,
    start=b"\x80\x04",
    end=b".",
    **more,
):
    """Write a folder with one tensor, whose chunks are (offsets, sizes, file, start, length)."""
    folder.mkdir(exist_ok=True)
    for path in SHARDED.glob("*.distcp"):
        shutil.copy(path, folder)
    listed = [
        record(f"{MODULE}.ChunkStorageMetadata", offsets=size(*offsets), sizes=size(*sizes))
        for offsets, sizes, *_ in chunks
    ]
    tensor = record(
        f"{MODULE}.TensorStorageMetadata",
        properties=properties(dtype, memory),
        size=size(*shape),
        chunks=b"](" + b"".join(listed) + b"e",
    )
    places = []
    for offsets, _, *place in chunks:
        if place:
            file, first, length = place
            fields = {"relative_path": text(file), "offset": integer(first)}
            fields |= {"length": integer(length), **more}
            index = record(f"{MODULE}.MetadataIndex", fqn=text("w"), offset=size(*offsets))
            info = "torch.distributed.checkpoint.filesystem._StorageInfo"
            places.append((index, record(info, **fields)))
    metadata = record(
        f"{MODULE}.Metadata",
        state_dict_metadata=mapping([(text("w"), tensor)]),
        storage_data=mapping(places),
    )
    (folder / ".metadata").write_bytes(start + metadata + end)
    return folder


UPPER = ((0, 0), (3, 4), "__0_0.distcp", 0, 1577)
LOWER = ((3, 0), (2, 4), "__1_0.distcp", 2522, 1577)


def test_metadata_by_hand_is_valid(tmp_path):
    folder = checkpoint(tmp_path / "x", chunks=[LOWER, UPPER])
    whole = load_all(DUMPS / "sharded.pt")["model.conv.weight"]
    np.testing.assert_array_equal(load_all(folder)["w"], whole)


def test_members_of_enumerations_in_python_3_11_0_are_read(tmp_path):
    """Python 3.11.0 to 3.11.3 pickle them by `getattr`, and other versions by their values."""
    memory = attribute(ENCODING, text("TORCH_CONTIGUOUS_FORMAT"))
    folder = checkpoint(tmp_path / "x", chunks=[LOWER, UPPER], memory=memory)
    whole = load_all(DUMPS / "sharded.pt")["model.conv.weight"]
    np.testing.assert_array_equal(load_all(folder)["w"], whole)


@pytest.mark.parametrize(
    "memory",
    [
        attribute(ENCODING, integer(0)),
        attribute(named("torch.Size"), text("__subclasses__")),
        attribute(named("builtins.getattr"), text("__self__")),
        attribute(attribute(ENCODING, text("__class__")), text("__base__")),
        attribute(text("x"), text("format")),
        attribute(attribute(ENCODING, text("__init__")), text("__globals__")),
        named("builtins.getattr") + ENCODING + text("x") + b"N\x87R",
        named("builtins.getattr") + b")R",
        named("builtins.getattr") + b")\x81",
        attribute(ENCODING, text("__subclasses__")) + b")R",
        attribute(ENCODING, text("mro")) + b")\x81",
        attribute(b"cos\nsystem\n", text("__call__")) + text("touch run") + b"\x85R",
        attribute(b"cbuiltins\n__import__\n", text("x")),
    ],
    ids=lambda _: "",
)
def test_other_attributes_are_refused(tmp_path, monkeypatch, memory):
    class Trap:
        def __getattr__(self, name):
            pytest.fail(f"the reader took the attribute {name}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, MODULE, Trap())
    folder = checkpoint(tmp_path / "x", chunks=[LOWER, UPPER], memory=memory)
    with pytest.raises((Unsafe, Corrupt)):
        open_dump(folder)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"chunks": [UPPER]}, Corrupt, "overlap, or leave a gap"),
        ({"chunks": [UPPER, UPPER]}, Corrupt, "overlap, or leave a gap"),
        ({"chunks": [UPPER, ((2, 0), *LOWER[1:])]}, Corrupt, "overlap, or leave a gap"),
        ({"chunks": [UPPER, ((4, 0), *LOWER[1:])]}, Corrupt, "outside of its shape"),
        ({"chunks": [UPPER, ((3,), *LOWER[1:])]}, Corrupt, "outside of its shape"),
        ({"chunks": [UPPER, LOWER[:2]]}, Corrupt, "that no file contains"),
        ({"chunks": [UPPER, (*LOWER[:2], "__7_0.distcp", 0, 1)]}, Corrupt, "is missing"),
        ({"chunks": [UPPER, (*LOWER[:3], 2522, 10**6)]}, Truncated, "reaches beyond"),
        ({"chunks": [UPPER, (*LOWER[:3], -1, 9)]}, Corrupt, "without a place"),
        ({"chunks": [UPPER, (*LOWER[:2], "../x.distcp", 0, 1)]}, Corrupt, "not a .distcp file"),
        ({"chunks": [UPPER, (*LOWER[:2], "/etc/x.distcp", 0, 1)]}, Corrupt, "not a .distcp file"),
        ({"chunks": [UPPER, (*LOWER[:2], "a.safetensors", 0, 1)]}, Corrupt, "not a .distcp file"),
        ({"chunks": [UPPER, (*LOWER[:2], "a\nb.distcp", 0, 1)]}, Corrupt, "not a .distcp file"),
        ({"chunks": [UPPER, (*LOWER[:3], 2522, 1500)]}, FormatError, "chunk of tensor 'w' in"),
        ({"chunks": [UPPER, (*LOWER[:3], 0, 1261)]}, Corrupt, "is not a float32 tensor"),
        ({"chunks": [UPPER, LOWER], "dtype": "torch.float16"}, Corrupt, "not a float16 tensor"),
        ({"chunks": [UPPER, LOWER], "dtype": "torch.nn.Linear"}, Unsafe, "torch.nn.Linear"),
        ({"chunks": [UPPER, LOWER], "shape": (2**40, 2**40)}, Corrupt, "impossible shape"),
        ({"chunks": [UPPER, LOWER], "start": b"\x80\x02"}, Unsupported, "protocol 4 or 5"),
        ({"chunks": [UPPER, LOWER], "end": b""}, Truncated, "pickle ends"),
        ({"chunks": [UPPER, LOWER], "end": b"N."}, Corrupt, "left at its end"),
        ({"chunks": [UPPER, LOWER], "end": b"Q."}, Corrupt, "no storage belongs to it"),
        ({"chunks": [UPPER, LOWER], "end": b"NN\x93."}, Corrupt, "not text, or too long"),
        (
            {"chunks": [UPPER, LOWER], "end": 2 * text(200 * "a") + b"\x93."},
            Corrupt,
            "not text, or too long",
        ),
        ({"chunks": [UPPER, LOWER], "end": b"N)\x81."}, Corrupt, "creates an object"),
        (
            {"chunks": [UPPER, LOWER], "end": named(f"{MODULE}.Metadata") + b"N\x85\x81."},
            Corrupt,
            "creates an object",
        ),
        (
            {"chunks": [UPPER, LOWER], "transform_descriptors": b"](" + text("zstd") + b"e"},
            Unsupported,
            "stored compressed",
        ),
        (
            {"chunks": [UPPER, LOWER], "start": b"\x80\x04\x95" + struct.pack("<Q", 2**63)},
            Truncated,
            "pickle ends",
        ),
    ],
)
def test_damaged_metadata_is_refused(tmp_path, arguments, kind, match):
    folder = checkpoint(tmp_path / "x", **arguments)
    with pytest.raises(kind, match=match):
        load_all(folder)


TENSOR = {"properties": properties(DTYPE), "size": size(5, 4), "chunks": b"]"}
CHUNK = record(f"{MODULE}.MetadataIndex", offset=size(0, 0))


@pytest.mark.parametrize(
    ("name", "fields", "places", "match"),
    [
        (text("w") + b"\x85", TENSOR, b"}", "a name of .metadata is not text, or too long"),
        (text("w"), {**TENSOR, "chunks": b"N"}, b"}", "no list of chunks"),
        (text("w"), {**TENSOR, "properties": b"N"}, b"}", "tensor 'w' has no dtype"),
        (text("w"), None, b"}", "another value in place of a TensorStorageMetadata"),
        (text("w"), b"N", b"}", "another value in place of a TensorStorageMetadata"),
        (text("w"), TENSOR, mapping([(b"N", CHUNK)]), "in place of a MetadataIndex"),
        (text("w"), TENSOR, b"]", "no dict of storage_data"),
        (text("w"), TENSOR, mapping([(CHUNK, CHUNK)]), "in place of a _StorageInfo"),
        (
            text("w"),
            TENSOR,
            mapping([(CHUNK, record("torch.distributed.checkpoint.filesystem._StorageInfo"))]),
            "a chunk without a name",
        ),
    ],
)
def test_metadata_of_other_kinds_is_refused(tmp_path, name, fields, places, match):
    if fields is None:
        tensor = record(f"{MODULE}.ChunkStorageMetadata")
    elif isinstance(fields, bytes):
        tensor = fields
    else:
        tensor = record(f"{MODULE}.TensorStorageMetadata", **fields)
    whole = {"state_dict_metadata": mapping([(name, tensor)]), "storage_data": places}
    metadata = record(f"{MODULE}.Metadata", **whole)
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + metadata + b".")
    with pytest.raises(Corrupt, match=match):
        open_dump(tmp_path)


def test_too_large_metadata_is_refused_before_it_is_read(tmp_path, monkeypatch):
    folder = checkpoint(tmp_path / "x", chunks=[LOWER, UPPER])
    monkeypatch.setattr(distributed_file, "_MAX_METADATA", 100)
    with pytest.raises(LimitExceeded, match=r"\.metadata of \d+ bytes, more than 100"):
        open_dump(folder)


def test_irregular_chunks_take_bounded_memory(tmp_path):
    # Diagonal chunks cut each axis at 2048 edges.
    chunks = [((i, i), (1, 1), "__0_0.distcp", 0, 1577) for i in range(2048)]
    folder = checkpoint(tmp_path / "x", chunks=chunks, shape=(2048, 2048))
    with pytest.raises(LimitExceeded, match="too irregularly"):
        open_dump(folder)


def repeated(value, count):
    """Return a list that contains one object many times, as the memo of a pickle allows."""
    return b"](" + value + b"\x94" + b"j\0\0\0\0" * (count - 1) + b"e"


def test_metadata_that_repeats_its_parts_is_refused(tmp_path):
    """Reading a record or a list again for each mention of it could take days."""
    zeros = named("torch.Size") + b"(" + integer(0) + b"t\x85R"
    chunk = record(f"{MODULE}.ChunkStorageMetadata", offsets=zeros, sizes=zeros)
    wide = {f"x{i}": b"N" for i in range(100)}
    wide_chunk = record(f"{MODULE}.ChunkStorageMetadata", offsets=zeros, sizes=zeros, **wide)
    for index, (tensors, chunks, kind) in enumerate(
        (
            (8, repeated(chunk, 60_000), LimitExceeded),
            (1, repeated(wide_chunk, 1), Corrupt),
            (1, b"](" + chunk * 100 + b"e", None),
        )
    ):
        tensor = record(
            f"{MODULE}.TensorStorageMetadata",
            chunks=chunks,
            properties=properties(DTYPE),
            size=zeros,
        )
        names = [text(f"w{i}") for i in range(tensors)]
        metadata = record(
            f"{MODULE}.Metadata",
            state_dict_metadata=mapping([(key, tensor) for key in names]),
            storage_data=mapping([]),
        )
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / ".metadata").write_bytes(b"\x80\x04" + metadata + b".")
        if kind is None:
            assert len(open_dump(folder).entries) == tensors
        else:
            with pytest.raises(kind):
                open_dump(folder)


def test_offsets_of_equal_hashes_take_linear_time():
    modulus = sys.hash_info.modulus
    offsets = list(itertools.product((0, modulus), repeat=10))
    assert len({hash(place) for place in offsets}) == 1
    index = [record(f"{MODULE}.MetadataIndex", fqn=text("w"), offset=size(*o)) for o in offsets]
    info = "torch.distributed.checkpoint.filesystem._StorageInfo"
    fields = {"relative_path": text("a.distcp"), "offset": integer(0), "length": integer(9)}
    places = mapping([(key, record(info, **fields)) for key in index])
    value = unpickle(b"\x80\x04" + places + b".", distributed_file.DIALECT)
    storages = distributed_file._storages(value)
    assert len({hash(key) for key in storages}) == len(offsets)


@pytest.mark.parametrize(
    "body",
    [
        text("os") + text("system") + b"\x93" + text("touch run") + b"\x85R",
        b"cos\nsystem\n" + text("touch run") + b"\x85R",
        named("torch.Size") + b")\x81",
        named(f"{MODULE}.Metadata") + text("x") + b"\x85R",
        named(f"{MODULE}.Metadata") + text("x") + b"\x85\x81",
        b"(" + text("torch.Size") + b"o",
        b"\x82\x01",
        integer(1) + text("Size") + b"\x93",
        text("x") + b"Q",
        b"N}b",
    ],
)
def test_no_code_is_run(tmp_path, monkeypatch, body):
    monkeypatch.chdir(tmp_path)
    Path(".metadata").write_bytes(b"\x80\x04" + body + b".")
    with pytest.raises((Unsafe, Corrupt)):
        open_dump(tmp_path)
    assert not Path("run").exists()


@pytest.mark.parametrize("cut", range(0, 2547, 97))
def test_cut_metadata_is_refused(tmp_path, cut):
    shutil.copytree(SHARDED, tmp_path / "x")
    path = tmp_path / "x" / ".metadata"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FormatError):
        open_dump(tmp_path / "x")


# --- sparse tensors in a file of torch.save


def test_sparse_tensors_are_passed_over():
    with open_dump(DUMPS / "sparse.pt") as dump:
        assert [entry.name for entry in dump.entries] == ["dense", "bias"]
        assert dump.omitted == {
            "embedding.coo": "its layout is 'torch.sparse_coo', and not dense",
            "csr": "its layout is 'torch.sparse_csr', and not dense",
        }
        assert dump.load(dump.entries[0]).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_pytorch_writes_sparse_tensors_that_are_passed_over(tmp_path):
    torch = pytest.importorskip("torch")
    coo = torch.eye(3).to_sparse()
    saved = {"parameter": torch.nn.Parameter(coo), "bsr": torch.eye(4).to_sparse_bsr((2, 2))}
    torch.save(
        {**saved, "csc": torch.eye(3).to_sparse_csc(), "w": torch.ones(1)}, tmp_path / "x.pt"
    )
    with open_dump(tmp_path / "x.pt") as dump:
        assert [entry.name for entry in dump.entries] == ["w"]
        assert dump.omitted.keys() == {"parameter", "bsr", "csc"}
