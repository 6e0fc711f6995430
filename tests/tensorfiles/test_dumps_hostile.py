"""Hostile and damaged files: each raises FormatError, runs no code and allocates little."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
import struct
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.limits import Limits
from gcodec.tensorfiles import entries, torch_file, unpickler
from gcodec.tensorfiles.dumps import open_dump, recognized_suffix, write_dump


def load_all(path, limits=None):
    with open_dump(path, limits=limits) as dump:
        return [dump.load(entry) for entry in dump.entries]


def kind_name(value):
    """Name a test case after its expected error instead of its bytes."""
    return value.__name__ if isinstance(value, type) else ""


def refused(path, kind, match=None, limits=None):
    """Open and load a file; expect exactly this type of error and no large allocation."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=match) as caught:
            load_all(path, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.type is kind, f"{caught.type.__name__}: {caught.value}"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert peak < 32 << 20


# --- pickles by hand


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value):
    data = value.to_bytes(9, "little", signed=True)
    return b"\x8a\x09" + data


def name(dotted):
    module, _, attribute = dotted.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def numbers(values):
    return b"(" + b"".join(integer(v) for v in values) + b"t"


def storage(kind="torch.FloatStorage", key="0", numel=6):
    return b"(" + text("storage") + name(kind) + text(key) + text("cpu") + integer(numel) + b"tQ"


OFFSET, SHAPE, STRIDE = 3, 4, 5  # indices of parts of `tensor`


def tensor(shape=(2, 3), stride=(3, 1), offset=0, **kwargs):
    return (
        *(name("torch._utils._rebuild_tensor_v2"), b"(", storage(**kwargs), integer(offset)),
        *(numbers(shape), numbers(stride), b"\x89", name("collections.OrderedDict"), b")Rt", b"R"),
    )


def tensor_bytes(**kwargs):
    return b"".join(tensor(**kwargs))


FLOATS = np.arange(6, dtype="<f4").tobytes()


def pt(path, body, data=FLOATS, extra=(), method=zipfile.ZIP_STORED, header=b"\x80\x02", end=b"."):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", header + body + end)
        archive.writestr("archive/data/0", data)
        for member, content in extra:
            archive.writestr(member, content)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.pt"


def test_hand_made_pt_file_is_valid(file):
    pt(file, tensor_bytes())
    (got,) = load_all(file)
    np.testing.assert_array_equal(got, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_counts_are_bounded(tmp_path, file, monkeypatch):
    tensors = b"](" + 3 * tensor_bytes() + b"e"
    assert len(load_all(pt(file, tensors))) == 3
    opcodes = len(list(pickletools.genops(tensors + b".")))  # after that of the protocol
    monkeypatch.setattr(unpickler, "_MAX_OPCODES", opcodes)
    assert len(load_all(file)) == 3
    monkeypatch.setattr(unpickler, "_MAX_OPCODES", opcodes - 1)
    refused(file, LimitExceeded, f"pickle of more than {opcodes - 1} opcodes")
    monkeypatch.undo()
    path = tmp_path / "x.npz"
    np.savez(path, a=np.ones(1), b=np.ones(1), c=np.ones(1))
    for module, dump in ((torch_file, file), (entries, path)):
        monkeypatch.setattr(module, "MAX_TENSORS", 3)
        assert len(load_all(dump)) == 3
        monkeypatch.setattr(module, "MAX_TENSORS", 2)
        refused(dump, LimitExceeded, "more than 2 tensors in one file")


class Runs:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_code_is_run(tmp_path, file, protocol):
    ran = tmp_path / "ran"
    for payload in (
        Runs(os.system, f"touch {ran}"),
        Runs(eval, f"open({str(ran)!r}, 'w')"),
        Runs(exec, f"open({str(ran)!r}, 'w')"),
    ):
        for value in (payload, {"a": [payload]}):
            data = pickle.dumps(value, protocol)
            pt(file, b"", header=b"", end=data)
            refused(file, Unsafe if protocol == 2 else Unsupported)
            (tmp_path / "bare.bin").write_bytes(data)
            refused(tmp_path / "bare.bin", Unsupported if protocol >= 2 else Corrupt)
            assert not ran.exists()
    array = np.array([Runs(os.system, f"touch {ran}")], object)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", array)
    refused(tmp_path / "x.npy", Unsafe)
    refused(tmp_path / "x.npz", Unsafe)
    assert not ran.exists()


@pytest.mark.parametrize(
    "body",
    [
        name("os.system") + text("true") + b"\x85R",
        name("builtins.eval") + text("1") + b"\x85R",
        name("torch.load") + b")R",
        name("torch._utils._rebuild_tensor"),
        name("torch.FloatStorage") + b")R",
        name("torch.float32") + b")R",
        name("collections.OrderedDict.__init__"),
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",
        b"]" + b"}" + b"b",
        tensor_bytes() + b"}b",
        name("collections.OrderedDict") + b")\x81",
        b"(ios\nsystem\n",
        b"\x82\x01",
        text("os") + text("system") + b"\x93",
    ],
)
def test_unsafe_pickles(file, body):
    refused(pt(file, body), Unsafe)


def test_unsafe_names_the_global(file):
    refused(pt(file, name("posix.system")), Unsafe, r"posix\.system")
    refused(pt(file, name("po\x1b[31msix.sys\tem")), Unsafe, r"\\x1b\[31m")


def memo_entries(count: int) -> bytes:
    """Return opcodes that store the top of the stack under the indices 0 to `count - 1`."""
    entries = np.empty(count, [("opcode", "S1"), ("index", "<u4")])
    entries["opcode"], entries["index"] = b"r", np.arange(count)
    return entries.tobytes()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Corrupt),
        (b"NN", Corrupt),
        (b"(N", Corrupt),
        (b"t", Corrupt),
        (b"(((t", Corrupt),
        (b"R", Corrupt),
        (b"N)R", Corrupt),
        (name("torch.Size") + b"NR", Corrupt),
        (name("torch.Size") + b")R", Corrupt),
        (name("torch.Size") + integer(-1) + b"\x85\x85R", Corrupt),
        (name("collections.OrderedDict") + b"N\x85R", Corrupt),
        (name("collections.OrderedDict") + b"]R", Corrupt),
        (b"h\0", Corrupt),
        (b"q\0", Corrupt),
        (b"(q\0", Corrupt),
        (b"NNs", Corrupt),
        (b"}(Nu", Corrupt),
        (b"](NNu", Corrupt),
        (b"}Na", Corrupt),
        (b"}Q", Corrupt),
        (b"(NNNNNtQ", Corrupt),
        (storage(numel=-1), Corrupt),
        (storage(kind="torch.float32"), Corrupt),
        (b"X\xff\xff\xff\x7fab", LimitExceeded),
        (b"X\x02\x00\x00\x00\xff\xfe", Corrupt),
        (b"X\x10\x00\x00\x00ab", Truncated),
        (b"c" + b"a" * 1000, Corrupt),
        (b"ctorch", Corrupt),
        (b"c\xff\nx\n", Corrupt),
        (b"G\0\0", Truncated),
        (b"\x8a\xff1", Truncated),
        (b"\x95" + bytes(8), Unsupported),
        (b"I1\n", Unsupported),
        (b"}" + tensor_bytes() + tensor_bytes() + b"s", Unsupported),
        (b"})" + tensor_bytes() + b"s", Unsupported),
        (b"}" + 2 * (text("a") + tensor_bytes() + b"s"), Corrupt),
        (b"}" + text("1") + tensor_bytes() + b"s" + integer(1) + tensor_bytes() + b"s", Corrupt),
        (b"]q\0h\0a", Corrupt),
        (b"}q\0" + text("a") + b"h\0s", Corrupt),
        (b"]q\0]h\0aa", Corrupt),
        (b"]q\0h\0\x85a", Corrupt),
        (b"]" + b"\x85" * 200_000, LimitExceeded),
        (b"]" * 2000 + b"a" * 1999, LimitExceeded),
        (b"N" * 1_000_001, LimitExceeded),
        (b"(" * 1_000_001, LimitExceeded),
        (b"N" + memo_entries(1_000_001), LimitExceeded),
        (b"]" + b"q\0h\0\x86" * 60, LimitExceeded),
        (b"}" + text("n" * 5000) + tensor_bytes() + b"s", LimitExceeded),
        (text("n" * 2_000_000), LimitExceeded),
    ],
    ids=kind_name,
)
def test_invalid_pickles(file, body, kind):
    pt(file, body)
    with pytest.raises(FormatError) as caught:
        load_all(file)
    assert caught.type is kind, f"{caught.type.__name__}: {caught.value}"


def test_pickle_end(file):
    refused(pt(file, b"N", end=b""), Truncated)
    refused(pt(file, b"", header=b"", end=b""), Truncated)
    refused(pt(file, b"N", end=b".N."), Corrupt)
    for header in (b"\x80\x04", b"\x81\x02"):
        refused(pt(file, b"N", header=header), Unsupported, "protocol 2")
    assert load_all(pt(file, b"N")) == []


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"shape": (2, 4)}, Corrupt),
        ({"shape": (7,), "stride": (1,)}, Corrupt),
        ({"offset": 1}, Corrupt),
        ({"offset": -1}, Corrupt),
        ({"offset": 2**63}, Corrupt),
        ({"stride": (4, 1)}, Corrupt),
        ({"stride": (-3, 1)}, Corrupt),
        ({"shape": (-2, 3)}, Corrupt),
        ({"shape": (6,)}, Corrupt),
        ({"shape": (2**62, 2**62), "stride": (0, 0)}, Corrupt),
        ({"shape": (2**62, 0, 2**62), "stride": (0, 0, 0)}, Corrupt),
        ({"shape": (2**40,), "stride": (0,)}, LimitExceeded),
        ({"shape": (2**20, 2**9), "stride": (0, 0)}, LimitExceeded),
        ({"shape": (1,) * 64, "stride": (1,) * 64}, Unsupported),
        ({"shape": (1,) * 65, "stride": (1,) * 65}, Unsupported),
        ({"numel": 5}, Corrupt),
        ({"numel": 7}, Corrupt),
        ({"numel": 2**61}, Corrupt),
        ({"key": "1"}, Corrupt),
        ({"key": "../data.pkl"}, Corrupt),
        ({"key": "\x1b[2J"}, Corrupt),
        ({"kind": "torch.DoubleStorage"}, Corrupt),
        ({"kind": "torch.storage.UntypedStorage"}, Corrupt),
        ({"kind": "torch.QInt8Storage"}, Unsafe),
    ],
    ids=kind_name,
)
def test_invalid_tensor_records(file, changed, kind):
    refused(pt(file, tensor_bytes(**changed)), kind)


def test_a_long_shape_that_tensors_share_is_refused(file):
    """Reading it again for each tensor could take days."""
    shape = numbers((1,) * 1000)
    parts = list(tensor())
    parts[SHAPE], parts[STRIDE] = b"h\0", b"h\0"
    refused(
        pt(file, b"](" + shape + b"q\0" + 9 * b"".join(parts) + b"e"),
        Unsupported,
        "pickle has 1000",
    )


@pytest.mark.parametrize(
    ("index", "value"),
    [(OFFSET, b"N"), (SHAPE, text("ab")), (STRIDE, integer(1)), (SHAPE, b"\x88\x85")],
)
def test_tensor_arguments_of_wrong_types(file, index, value):
    parts = list(tensor())
    parts[index] = value
    refused(pt(file, b"".join(parts)), Corrupt)


def test_flags_of_tensors(file):
    *start, _, end = tensor()
    assert len(load_all(pt(file, b"".join((*start, b")R}t", end))))) == 1
    for flags, kind in ((b"\x88", Unsupported), (b"}}", Corrupt)):
        refused(pt(file, b"".join((*start, b")R", flags, b"t", end))), kind)


def test_views_of_storages(file):
    """Elements of a result never share memory, and an empty tensor may have any strides."""
    (got,) = load_all(pt(file, tensor_bytes(shape=(2, 2), stride=(0, 3))))
    got[0] = 9
    np.testing.assert_array_equal(got, [[9, 9], [0, 3]])
    (empty,) = load_all(pt(file, tensor_bytes(shape=(3, 0), stride=(1, 1), numel=0), b""))
    assert empty.shape == (3, 0)


def test_values_of_pickles():
    values = [True, False, None, -5, 300, 70_000, -(2**40), 1.5, "é", (), (1,), (1, 2), (1, 2, 3)]
    data = pickle.dumps([*values, tuple(values)], protocol=2)
    assert repr(unpickler.unpickle(data, torch_file.DIALECT)) == repr([*values, tuple(values)])


def test_containers_and_keys(file):
    """A container may appear twice, a key may be None, and one of any type may have a number."""
    shared = b"](" + b"]q\0" + tensor_bytes() + b"a" + b"h\0" + b"e"
    with open_dump(
        pt(file, b"}" + text("a") + shared + b"sN" + tensor_bytes() + b"s)K\1s")
    ) as dump:
        assert [entry.name for entry in dump.entries] == ["a.0.0", "a.1.0", "None"]


def test_tensor_v3(file):
    def v3(storage_bytes, dtype):
        return (
            *(name("torch._utils._rebuild_tensor_v3"), b"(", storage_bytes, integer(0)),
            *(numbers((12,)), numbers((1,)), b"\x89", b"}", dtype, b"tR"),
        )

    raw = storage(kind="torch.storage.UntypedStorage", numel=24)
    (got,) = load_all(pt(file, b"".join(v3(raw, name("torch.uint16")))))
    np.testing.assert_array_equal(got, np.frombuffer(FLOATS, np.uint16))
    refused(pt(file, b"".join(v3(raw, name("torch.uint32")))), Corrupt)
    refused(pt(file, b"".join(v3(raw, b"N"))), Corrupt)
    refused(pt(file, b"".join(v3(raw, name("torch.Size")))), Corrupt)
    refused(pt(file, b"".join(v3(storage(), name("torch.uint16")))), Corrupt)
    refused(pt(file, b"".join(v3(raw, name("torch.float8_e5m2fnuz")))), Unsupported)


def test_booleans_are_zero_or_one(tmp_path, file):
    raw = bytes([0, 1, 2, 255])
    pt(file, tensor_bytes(kind="torch.BoolStorage", numel=4, shape=(4,), stride=(1,)), raw)
    np.save(tmp_path / "x.npy", np.frombuffer(raw, bool))
    (tmp_path / "x.safetensors").write_bytes(
        safetensors({"x": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}, raw)
    )
    for path in (file, tmp_path / "x.npy", tmp_path / "x.safetensors"):
        (got,) = load_all(path)
        assert got.tobytes() == bytes([0, 1, 1, 1])


def test_torch_archives(tmp_path, file):
    refused(pt(file, b"N", extra=[("archive/constants.pkl", b"")]), Unsupported, "TorchScript")
    refused(pt(file, b"N", extra=[("archive/code/x.py", b"")]), Unsupported, "TorchScript")
    refused(pt(file, b"N", extra=[("other/data.pkl", b"N.")]), Corrupt)
    assert load_all(pt(file, b"N", extra=[("archive/extra/data.pkl", b"N.")])) == []
    refused(pt(file, b"N", extra=[("archive/byteorder", b"middle")]), Corrupt)
    refused(pt(file, b"N", extra=[("archive/byteorder", b"big" * 99)]), LimitExceeded)
    write_dump(tmp_path / "x.npz", [("a", np.zeros(2))])
    os.replace(tmp_path / "x.npz", file)
    refused(file, Corrupt, "data.pkl")
    for data, kind in (
        (b"", Truncated),
        (b"P", Truncated),
        (b"PK", Truncated),
        (b"x" * 99, Corrupt),
    ):
        file.write_bytes(data)
        refused(file, kind)
    file.write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
    refused(file, Unsupported, r"torch\.save")


def test_part_of_a_deflated_storage(file):
    zeros = bytes(64 << 20)
    body = tensor_bytes(shape=(2,), stride=((16 << 20) - 1,), numel=16 << 20)
    pt(file, body, zeros, method=zipfile.ZIP_DEFLATED)
    refused(file, LimitExceeded, "max_bytes", Limits(max_bytes=1 << 20))
    body = tensor_bytes(shape=(2,), stride=(1,), offset=(16 << 20) - 2, numel=16 << 20)
    pt(file, body, zeros[:-8] + FLOATS[8:16], method=zipfile.ZIP_DEFLATED)
    np.testing.assert_array_equal(load_all(file)[0], [2, 3])
    limits = Limits(max_bytes=1 << 20)  # the bytes before the view are unpacked, too
    refused(file, LimitExceeded, f"needs {64 << 20} bytes, more than max_bytes", limits)
    pt(file, body, zeros[:-8] + FLOATS[8:16])
    np.testing.assert_array_equal(load_all(file, limits)[0], [2, 3])


# --- zip archives


def zip_by_hand(path, members, count=None):
    """Write members (name, packed bytes, declared size, method, flags, crc) without any check."""
    body, directory = b"", b""
    for raw_name, packed, size, method, flags, crc in members:
        common = struct.pack("<4H3L", flags, method, 0, 0, crc, len(packed), size)
        lengths = struct.pack("<2H", len(raw_name), 0)
        at = len(body)
        body += b"PK\3\4" + b"\x14\0" + common + lengths + raw_name + packed
        directory += b"PK\1\2" + b"\x14\0\x14\0" + common + lengths + bytes(10)
        directory += struct.pack("<L", at) + raw_name
    count = len(members) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)
    return path


def npy(descr="'<f4'", shape="(6,)", order="False", data=FLOATS, version=1, text=None):
    text = text or f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def deflate(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def member(data, raw_name=b"a.npy", packed=None, size=None, method=0, flags=0, crc=None):
    packed = data if packed is None else packed
    crc = zlib.crc32(data) if crc is None else crc
    return raw_name, packed, len(data) if size is None else size, method, flags, crc


def test_hand_made_zip_is_valid(tmp_path):
    path = tmp_path / "x.npz"
    packed = member(npy(), b"b", deflate(npy()), method=8)
    zip_by_hand(path, [member(npy()), packed])
    for got in load_all(path):
        np.testing.assert_array_equal(got, np.arange(6, dtype=np.float32))


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ([member(npy()), member(npy())], Corrupt),
        ([member(npy()), member(npy(), b"a")], Corrupt),
        ([member(npy(), flags=1)], Unsupported),
        ([member(npy(), flags=0x2000)], Unsupported),
        ([member(npy(), method=12)], Unsupported),
        ([member(npy(), method=99)], Unsupported),
        ([member(npy(), crc=1)], Corrupt),
        ([member(npy(), size=10)], Corrupt),
        ([member(npy(), size=10**9)], Corrupt),
        ([member(npy(), packed=deflate(npy()), method=8, size=10**9)], Corrupt),
        ([member(npy(), packed=deflate(npy()), method=8, size=len(npy()) + 1)], Corrupt),
        ([member(npy(), packed=deflate(npy()), method=8, size=len(npy()) - 1)], Corrupt),
        ([member(npy(), packed=deflate(npy())[:-9], method=8)], Corrupt),
        ([member(npy(), packed=deflate(npy()) + b"x", method=8)], None),
        ([member(npy(), crc=0)], None),
        ([member(npy(), packed=deflate(npy()), method=8, crc=0)], None),
        ([member(npy(), packed=deflate(npy())[:-9], method=8, crc=0)], Truncated),
        ([member(npy(), packed=b"\xff" * 99, method=8)], Corrupt),
        # Data after the declared size are never read, like data after the stream above.
        ([member(npy(), packed=deflate(npy(data=FLOATS * 9)), method=8)], None),
        ([member(npy(), packed=deflate(npy(data=FLOATS * 9)), method=8, crc=1)], Corrupt),
        ([member(npy(), b"\xff.npy", flags=0x800)], Corrupt),
        ([member(b"")], Truncated),
        ([member(b"nothing of NumPy")], Corrupt),
        ([member(npy(shape="(7,)"))], Corrupt),
        ([member(npy(shape="(5,)"))], Corrupt),
        ([member(npy(shape="(1152921504606846976,)"))], Corrupt),
        ([member(npy(), b"\x1b[31m\n.npy", crc=1)], Corrupt),
    ],
    ids=kind_name,
)
def test_invalid_npz(tmp_path, members, kind):
    path = zip_by_hand(tmp_path / "x.npz", members)
    if kind is None:
        np.testing.assert_array_equal(load_all(path)[0], np.arange(6, dtype=np.float32))
    else:
        refused(path, kind)


def test_deflate_bomb(tmp_path):
    path = tmp_path / "x.npz"
    bomb = npy(shape="(16777216,)", data=bytes(64 << 20))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bomb)
    refused(path, LimitExceeded, "max_elements", Limits(max_elements=1 << 20))
    refused(path, LimitExceeded, "max_ratio", Limits(max_ratio=100))
    zip_by_hand(path, [member(npy(), packed=deflate(bomb), method=8)])
    refused(path, Corrupt)


def test_zip_directories(tmp_path):
    path = tmp_path / "x.npz"
    zip_by_hand(path, [member(npy())])
    good = path.read_bytes()
    at = len(good) - 22
    for start in (0, 1, at - 5, at, 2**32 - 2):
        path.write_bytes(good[:-6] + struct.pack("<LH", start, 0))
        refused(path, Corrupt)
    for size in (1, at, 2**32 - 2):
        path.write_bytes(good[:-10] + struct.pack("<L", size) + good[-6:])
        refused(path, Corrupt)
    path.write_bytes(good[: at + 4] + b"\1\0" + good[at + 6 :])
    refused(path, Unsupported)
    path.write_bytes(good[:at])
    refused(path, Truncated)
    # The zip64 end record is missing, at a wrong offset, or declares many members.
    end64 = b"PK\6\6" + struct.pack("<Q2H2L4Q", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 0, 0)
    for end64_at in (at, 0, 2**63):
        locator = b"PK\6\7" + struct.pack("<LQL", 0, end64_at, 1)
        end = good[at : at + 8] + b"\xff" * 12 + b"\0\0"
        path.write_bytes(good[:at] + end64 + locator + end)
        refused(path, Corrupt)
    # The end record declares another number of members.
    for count in (0, 2, 0xFFFE):
        refused(zip_by_hand(path, [member(npy())], count), Corrupt)


def test_ends_of_archives(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path)
    assert load_all(path) == []
    good = zip_by_hand(path, [member(npy())]).read_bytes()
    path.write_bytes(good[:-2] + b"\xff\xff" + bytes(0xFFFF))  # the longest comment
    assert len(load_all(path)) == 1
    for cut in (1, 18):
        path.write_bytes(good[:-cut])
        refused(path, Truncated, "no directory at its end")
    # Archives of zip64 may declare the largest number.
    assert len(load_all(zip_by_hand(path, [member(npy())], 0xFFFF))) == 1
    refused(zip_by_hand(path, [], 0xFFFF), Corrupt, "has 0 members, not 65535")


@pytest.mark.parametrize("method", [0, 8])
def test_declared_sizes_allocate_nothing(tmp_path, method):
    head = npy(shape="(16777216,)", data=b"")
    packed = deflate(head) if method else head
    members = [member(head, packed=packed, size=len(head) + (64 << 20), method=method)]
    refused(zip_by_hand(tmp_path / "x.npz", members), Corrupt, "the size that it declares")


def test_too_many_members(tmp_path):
    path = tmp_path / "x.npz"
    entry = struct.Struct("<4s6H3L5H2L")
    head = entry.pack(b"PK\1\2", *[0] * 9, 4, *[0] * 6)
    directory = b"".join(head + struct.pack("<L", i) for i in range(66_000))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), 0, 0)
    path.write_bytes(directory + end)
    with pytest.raises(LimitExceeded, match="65536 members"):
        open_dump(path)


def test_large_directories(tmp_path):
    path = tmp_path / "x.npz"
    # Extra fields of 0 bytes, which zipfile reads one by one.
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 9, 4, 65_532, *[0] * 5)
    directory = (entry + b"name" + b"\xff\xff\0\0" * 16_383) * 400
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 400, 400, len(directory), 0, 0)
    path.write_bytes(directory + end)
    refused(path, LimitExceeded, "zip directory")


def test_overlapping_members(tmp_path):
    path = tmp_path / "x.npz"
    zip_by_hand(path, [member(npy(), b"a.npy"), member(npy(), b"b.npy")])
    data = bytearray(path.read_bytes())
    second = data.rfind(b"PK\1\2")
    data[second + 42 : second + 46] = struct.pack("<L", 1)
    path.write_bytes(data)
    refused(path, Corrupt, "overlap")
    data[second + 42 : second + 46] = bytes(4)
    path.write_bytes(data)
    refused(path, Corrupt)
    zip_by_hand(path, [member(npy(), b"a.npy"), member(npy(), b"b.npy")])
    good = path.read_bytes()
    for entry in (good.find(b"PK\1\2"), second):  # whose data reach into what follows them
        data = bytearray(good)
        data[entry + 20 : entry + 28] = 2 * struct.pack("<L", len(npy()) + 40)
        path.write_bytes(data)
        refused(path, Corrupt, "overlap")


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        (b"PK\3\4", ".npz"),
        (b"PK\5\6" + bytes(18), ".npz"),
        (b"\x93NUMPY\1\0", ".npy"),
        (b"\2" + bytes(7) + b"{}", ".safetensors"),
        (b"GCF", ".gcf"),
        (b"GIF89a", None),
    ],
)
def test_formats_are_recognized_by_first_bytes(tmp_path, data, suffix):
    path = tmp_path / "x"
    path.write_bytes(data)
    if suffix is None:
        with pytest.raises(Unsupported):
            recognized_suffix(path)
    else:
        assert recognized_suffix(path) == suffix


def test_an_empty_file_is_no_unknown_format(tmp_path):
    path = tmp_path / "x"
    path.touch()
    with pytest.raises(Truncated, match=r"^the file is empty"):
        recognized_suffix(path)


def test_damaged_archives_are_recognized(tmp_path):
    path = tmp_path / "x"
    zip_by_hand(path, [member(b"", b"archive/data.pkl")])
    assert recognized_suffix(path) == ".pt"
    good = path.read_bytes()
    entry = good.index(b"PK\1\2")
    for at, value in ((6, 99), (9, 8)):  # version of zip, and flag of UTF-8
        data = bytearray(good.replace(b"archive/data.pkl", b"archive/data.pk\xff"))
        data[entry + at] = value
        path.write_bytes(data)
        assert recognized_suffix(path) == ".npz"
    random_numbers = random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        data[random_numbers.randrange(2, len(data))] = random_numbers.choice([0, 1, 99, 255])
        path.write_bytes(data)
        assert recognized_suffix(path) in (".pt", ".npz")


# --- .npy headers


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Truncated),
        (b"\x93NUMPY", Truncated),
        (b"PK\3\4\0\0\0\0\0\0", Corrupt),
        (npy()[:-1], Truncated),
        (npy() + b"x", Corrupt),
        (npy()[:30], Truncated),
        (npy(version=4), Unsupported),
        (npy(version=0), Unsupported),
        (npy()[:7] + b"\1" + npy()[8:], Unsupported),
        (npy(shape="(1099511627776,)"), Truncated),
        (npy(shape="(2305843009213693951,)"), Truncated),
        (npy(shape="(2305843009213693952,)"), Corrupt),
        (npy(shape="(99999999999999999999,)"), Corrupt),
        (npy(shape="(99999999999999999999, 0)"), Corrupt),
        (npy(shape="(" + "9" * 5000 + ",)"), Corrupt),
        (npy(shape="(-6,)"), Corrupt),
        (npy(shape="6"), Corrupt),
        (npy(shape="[6]"), Corrupt),
        (npy(shape="(6.0,)"), Corrupt),
        (npy(shape="(2 3)"), Corrupt),
        (npy(shape="(" + "1," * 40 + ")"), Unsupported),
        (npy(order="1"), Corrupt),
        (npy(order="'False'"), Corrupt),
        (npy(descr="3"), Corrupt),
        (npy(descr="True"), Corrupt),
        (npy(descr="'O'"), Unsafe),
        (npy(descr="'|O'"), Unsafe),
        (npy(descr="'|O8'"), Unsupported),
        (npy(descr="'<f3'"), Unsupported),
        (npy(descr="'<f16'"), Unsupported),
        (npy(descr="'<b4'"), Unsupported),
        (npy(descr="'float32'"), Unsupported),
        (npy(descr="'\x1b[31m'"), Unsupported),
        (npy(descr="[('a', '<f4')]"), Unsupported),
        (npy(descr="[('a', '|O')]"), Unsupported),
        (npy(text="{}"), Corrupt),
        (npy(text="{'descr': '<f4', 'shape': (6,)}"), Corrupt),
        (
            npy(text="{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"),
            Corrupt,
        ),
        (npy(text="{'descr': '<f4', 'fortran_order': False, 'shape': (6,)"), Corrupt),
        (npy(text="{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} 1"), Corrupt),
        (npy(text="['descr': '<f4', 'fortran_order': False, 'shape': (6,)}"), Corrupt),
        (npy(text="{'descr': '<f4', 'descr': [('a', '<f4')], 'shape': (6,)}"), Corrupt),
        (npy(text="{'descr': __import__('os'), 'fortran_order': False, 'shape': (6,)}"), Corrupt),
        (npy(text="(" * 9000), Corrupt),
        (npy(text="-" * 9000 + "1"), Corrupt),
        (npy(text="{" + " " * 9000), Corrupt),
        (npy(text="{'descr': [" + "]," * 4000), Corrupt),
        (npy(text=" " * 20_000), LimitExceeded),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff", LimitExceeded),
        (b"\x93NUMPY\3\0\2\0\0\0\xff\xff", Corrupt),
    ],
    ids=kind_name,
)
def test_invalid_npy(tmp_path, data, kind):
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    refused(path, kind)


def test_malformed_shapes_take_linear_time(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(npy(shape="(1" + " " * 9000 + "1)"))
    begin = time.process_time()
    refused(path, Corrupt)
    assert time.process_time() - begin < 0.25


def test_npy_headers_of_other_writers(tmp_path):
    path = tmp_path / "x.npy"
    for header in (
        '{"shape": (2L, 3L), "fortran_order": False, "descr": "<f4"}',
        "{ 'shape':(2,3) , 'descr':'<f4' ,'fortran_order':False , }   \n",
    ):
        path.write_bytes(npy(text=header))
        np.testing.assert_array_equal(load_all(path)[0], np.arange(6).reshape(2, 3))


# --- safetensors


def safetensors(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def one(dtype="F32", shape=(1,), start=0, end=4, key="x"):
    return {key: {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Truncated),
        (b"\1\2\3", Truncated),
        (struct.pack("<Q", 50) + b"{}", Truncated),
        (struct.pack("<Q", 99_000_000) + b"{}", Truncated),
        (b"\xff" * 8, Corrupt),
        (b"\xff" * 99, Corrupt),
        (safetensors(b"{]"), Corrupt),
        (safetensors(b"\xff\xff"), Corrupt),
        (safetensors(b"[]"), Corrupt),
        (safetensors(b"[" * 10_000), Corrupt),
        (safetensors(one(), b"123"), Truncated),
        (safetensors(one(), b"12345"), Corrupt),
        (safetensors({}, b"1"), Corrupt),
        (safetensors(one(shape=(2,)), b"1234"), Corrupt),
        (safetensors(one(end=2**63), b"1234"), Truncated),
        (safetensors(one(start=4, end=0), b"1234"), Corrupt),
        (safetensors(one(shape=(2**63, 4)), b"1234"), Corrupt),
        (safetensors(one(shape=(2**62, 0), end=0)), Corrupt),
        (safetensors(one(shape=(1,) * 40), b"1234"), Unsupported),
        (safetensors(one(dtype="F8_E8M0", end=1), b"1"), Unsupported),
        (safetensors(one(dtype="F4", shape=(8,)), b"1234"), Unsupported),
        (safetensors(one(dtype="F9\x1b[31m"), b"1234"), Corrupt),
        (safetensors(one(shape=(9,), key="\x1b[31m"), b"1234"), Corrupt),
        (safetensors({"__metadata__": {"a": 1}}), Corrupt),
    ],
    ids=kind_name,
)
def test_invalid_safetensors(tmp_path, data, kind):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    refused(path, kind)


@pytest.mark.skipif(os.name != "posix", reason="files with holes")
def test_huge_header_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 28))
        file.truncate((1 << 28) + 99)
    refused(path, Corrupt, "too large")


@pytest.mark.parametrize(
    "shard",
    [
        *("../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "C:\\x.safetensors"),
        *(
            "..\\x.safetensors",
            "\\\\host\\share\\x.safetensors",
            "C:x.safetensors",
            "a\n.safetensors",
        ),
        *("x.pt", "", "x\0.safetensors", 3, None, ["x.safetensors"]),
    ],
)
def test_shards_stay_inside(tmp_path, shard):
    folder = tmp_path / "in" / "deep"
    folder.mkdir(parents=True)
    write_dump(tmp_path / "in" / "x.safetensors", [("a", np.zeros(1))])
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    refused(index, Corrupt)


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has pipes in folders")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_shards_that_are_no_files(tmp_path, kind):
    """The library waits without end for the bytes of a pipe, and reads those of a device."""
    shard, index = tmp_path / "a.safetensors", tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard.name}}))
    if kind == "pipe":
        os.mkfifo(shard)
    elif kind == "device":
        shard.symlink_to(os.devnull)
    else:
        shard.mkdir()
    with pytest.raises(Corrupt, match=r"^index names 'a\.safetensors', which is a directory or a"):
        open_dump(index)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Truncated),
        (b"{", Corrupt),
        (b"\xff\xfe\xff", Corrupt),
        (b"[" * 100_000, Corrupt),
        (b"9" * 10_000, Corrupt),
        (b"[]", Corrupt),
        (b"{}", Corrupt),
        (b'{"weight_map": 3}', Corrupt),
        (
            json.dumps({"weight_map": dict.fromkeys(map(str, range(70_000)))}).encode(),
            LimitExceeded,
        ),
    ],
    ids=kind_name,
)
def test_invalid_index(tmp_path, data, kind):
    index = tmp_path / "m.safetensors.index.json"
    index.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        open_dump(index)
    assert caught.type is kind


# --- mutations of valid files


def valid_file(folder, kind):
    path = Path(folder) / f"valid.{kind.removeprefix('deflated ')}"
    arrays = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.c": np.arange(5, dtype=ml_dtypes.bfloat16),
        "d": np.asarray(True),
    }
    if kind == "npy":
        np.save(path, arrays["a"])
    elif kind == "pt":
        body = (
            b"}(" + text("a") + tensor_bytes() + text("b") + b"]" + tensor_bytes(offset=0) + b"au"
        )
        pt(path, body, extra=[("archive/byteorder", b"little"), ("archive/version", b"3\n")])
    elif kind.startswith("deflated"):
        np.savez_compressed(path, a=arrays["a"], d=arrays["d"])
    else:
        write_dump(path, arrays.items())
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "deflated npz", "pt", "safetensors"])
def test_mutated_files(tmp_path, kind):
    path = valid_file(tmp_path, kind)
    good = path.read_bytes()
    count = len(load_all(path))
    random_numbers = random.Random(kind)
    limits = Limits(max_elements=1 << 16, max_bytes=1 << 20)
    refusals = 0
    for round_number in range(600):
        data = bytearray(good)
        at = random_numbers.randrange(len(data))
        if round_number % 2:
            data[at] = random_numbers.choice([data[at] ^ 1 << random_numbers.randrange(8), 0, 255])
        else:
            del data[at:]
        path.write_bytes(data)
        try:
            arrays = load_all(path, limits)
        except FormatError as error:
            refusals += 1
            assert str(error).isprintable()
        else:
            assert len(arrays) <= count
            assert all(isinstance(array, np.ndarray) for array in arrays)
    assert refusals > 300


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "safetensors", "safetensors.index.json"])
def test_random_bytes_are_refused(tmp_path, suffix):
    random_numbers = random.Random(suffix)
    path = tmp_path / f"x.{suffix}"
    starts = (b"", b"PK\3\4", b"\x93NUMPY\1\0\x40\0", b"\x10" + bytes(7) + b"{", b"{", b"PK\5\6")
    for _ in range(100):
        path.write_bytes(
            random_numbers.choice(starts) + random_numbers.randbytes(random_numbers.randrange(200))
        )
        with pytest.raises(FormatError):
            load_all(path)


def test_mutated_pickles(file):
    random_numbers = random.Random(5)
    body = b"}(" + text("a") + tensor_bytes() + text("b") + b"]q\1" + tensor_bytes() + b"aubN"
    opcodes = b".(0]}tsuaeRQcbXKMJNqrhjG\x80\x85\x86\x87\x88\x89\x8a"
    for _ in range(1000):
        data = bytearray(body)
        for _ in range(random_numbers.randrange(1, 4)):
            data[random_numbers.randrange(len(data))] = random_numbers.choice(opcodes)
        try:
            load_all(pt(file, bytes(data)))
        except FormatError as error:
            assert str(error).isprintable()
