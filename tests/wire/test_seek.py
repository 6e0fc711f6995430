"""Seek tables: their bytes, invalid tables, and equal results with and without a table."""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies as gs
import unary
from hypothesis import given
from hypothesis import strategies as st
from reference import crc32c, leb128
from reference import frame as reference
from sweeps import LONG, examples, thinned
from unary import PREAMBLE, WORDS, levels

import gcodec
from gcodec import Corrupt, FormatError, Frame, Limits, Truncated, Unsupported
from gcodec.errors import ParameterError
from gcodec.tensorfiles.dumps import open_dump
from gcodec.wire import seek
from gcodec.wire.seek import SeekTable

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet8_digits_step0300.safetensors"


@pytest.fixture(scope="module", autouse=True)
def codec() -> Iterator[None]:
    with unary.registered():
        yield


SPECS = {
    "dense": "test-unary:form=dense",
    "sparse": "test-unary:form=sparse",
    "qsgd": "qsgd:s=3,form=dense",
    "qsgd-sparse": "qsgd:s=7,form=sparse,bucket=16",
    "qsgd-rice": "qsgd:s=300,form=dense,bucket=7,code=rice",
    "qsgd-rice-sparse": "qsgd:s=3,form=sparse,norm=max,code=rice",
}
forms = pytest.mark.parametrize("form", ["dense", "sparse"])
each_spec = pytest.mark.parametrize("form", SPECS)


def frame_with_table(n: int, form: str, log2_block: int, **kwargs: Any) -> Frame:
    """Encode n levels as a frame with a table."""
    key = kwargs.get("key")
    data = gcodec.encode(levels(n), SPECS[form], **kwargs)
    return Frame.from_bytes(data, key=key).with_seek(log2_block)


def plain(frame: Frame) -> np.ndarray:
    """Decode a frame without its table."""
    decoded: np.ndarray = frame.without_seek().decode()
    return decoded


def section_of(frame: Frame) -> bytes:
    assert frame.seek is not None
    return frame.seek.to_bytes()


def with_section(frame: Frame, section: bytes) -> bytes:
    """Return the bytes of a frame with another section and valid checksums."""
    header = bytearray(frame.without_seek().header()[:-4])
    header[4] |= 2
    header += section
    payload = frame.payload.tobytes()
    return b"".join(
        (
            header,
            crc32c.crc32c(bytes(header)).to_bytes(4, "little"),
            payload,
            crc32c.crc32c(payload).to_bytes(4, "little"),
        )
    )


def columns_of(table: SeekTable) -> list[list[int]]:
    both = [table.lengths, table.advances]
    return [column.tolist() for column in both if column is not None]


def written(log2_block: int, columns: list[list[int]], width: int | None = None) -> bytes:
    """Write a section with these columns, independently of the library."""
    largest = max(itertools.chain(*columns), default=0)
    width = width or next(w for w in (1, 2, 4, 8) if largest < 1 << 8 * w)
    out = [bytes([log2_block, width]), leb128.encode(len(columns[0]))]
    for i in range(len(columns[0])):
        if i and i % 4096 == 0:
            out += [(sum(column[:i]) % 2**64).to_bytes(8, "little") for column in columns]
        out += [column[i].to_bytes(width, "little") for column in columns]
    return b"".join(out)


def refused(data: bytes, kind: type[FormatError] = Corrupt, match: str | None = None) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        gcodec.decode(data)
    assert caught.type is kind, f"{caught.type.__name__}: {caught.value}"


# --- bytes --------------------------------------------------------------------------------------


def test_bytes_by_hand() -> None:
    dense = SeekTable(2, np.array([5, 300, 7], np.uint64))
    assert dense.to_bytes().hex(" ") == "02 02 03 05 00 2c 01 07 00"
    assert dense.offsets.tolist() == [0, 5, 305, 312]
    assert dense.positions is None
    sparse = SeekTable(0, np.array([5, 9], np.uint64), np.array([1, 70000], np.uint64))
    assert sparse.to_bytes().hex(" ") == "00 04 02 05 00 00 00 01 00 00 00 09 00 00 00 70 11 01 00"
    assert sparse.positions is not None
    assert sparse.positions.tolist() == [0, 1, 70001]
    for table in (dense, sparse):
        assert table.nbytes == len(table.to_bytes())
        assert table.count == table.lengths.size


def test_frame_by_hand() -> None:
    """Each of 1, 0, 2 in unary, after 16 bits, is a block."""
    frame = Frame.from_bytes(
        gcodec.encode(np.array([1, 0, 2], np.float32), "test-unary:form=dense")
    )
    assert frame.payload.tobytes().hex() == "aa553080"
    head = "47434601 02 c9 01 01 03 01 00 00 19"
    section = "00 01 03 03 01 05"
    expected = with_section(frame, bytes.fromhex(section))
    assert frame.with_seek(0).to_bytes() == expected
    assert expected.startswith(bytes.fromhex(head + section))


@forms
@pytest.mark.parametrize("log2_block", [0, 1, 5, 12, 62])
def test_bytes_equal_the_reference(form: str, log2_block: int) -> None:
    frame = frame_with_table(9000, form, log2_block, name="w", key=b"k")
    assert frame.seek is not None and frame.seek.log2_block == log2_block
    columns = columns_of(frame.seek)
    section = written(log2_block, columns)
    assert section_of(frame) == section
    assert (len(columns[0]) > 4096) == (log2_block < 2 and form == "dense")
    data = frame.to_bytes()
    assert len(data) == frame.nbytes
    assert data == reference.build(
        *(201, 1, (9000,), frame.codec.write_parameters(), b""),
        *(frame.payload.tobytes(), frame.payload.nbits, "w", b"k", section),
    )
    fields = reference.parse(data, b"k", form == "sparse")
    assert (fields["seek"], fields["flags"]) == (section, 7)
    read = Frame.from_bytes(data, key=b"k")
    assert read.seek is not None
    assert columns_of(read.seek) == columns
    assert read.to_bytes() == data


def test_sums_of_sparse_tables_of_many_blocks() -> None:
    frame = frame_with_table(30000, "sparse", 0)
    assert frame.seek is not None and frame.seek.count > 8192
    assert section_of(frame) == written(0, columns_of(frame.seek))
    assert np.array_equal(Frame.from_bytes(frame.to_bytes()).decode(), levels(30000))


# --- equal results with and without a table -----------------------------------------------------


@given(st.data())
def test_adding_and_removing_a_table(data: st.DataObject) -> None:
    n = data.draw(gs.sizes(large=True))
    form = data.draw(st.sampled_from(["dense", "sparse", "auto"]))
    density = data.draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    x = levels(n, data.draw(st.integers(0, 99)), density)
    x = x.reshape(data.draw(gs.shapes(n)) if n else (3, 0))
    name, key = data.draw(gs.names()), data.draw(gs.keys())
    plain = gcodec.encode(x, f"test-unary:form={form}", name=name, key=key)
    frame = Frame.from_bytes(plain, key=key)
    assert frame.seek is None and frame.without_seek() is frame
    log2_block = data.draw(st.sampled_from([0, 1, 2, 3, 7, 12, 13, 61, 62]))
    indexed = frame.with_seek(log2_block)
    sent = x.size if frame.codec.seek_blocks == "elements" else np.count_nonzero(x)
    assert (indexed.seek is None) == (indexed is frame) == (not sent)
    if indexed.seek is not None:
        assert indexed.seek.count == -(-sent >> log2_block)
    assert indexed.with_seek(log2_block) is indexed
    assert (indexed.name, indexed.key, indexed.shape) == (name, key, x.shape)
    assert indexed.without_seek().to_bytes() == plain
    written = indexed.to_bytes()
    assert len(written) == indexed.nbytes
    read = Frame.from_bytes(written, key=key)
    assert read.to_bytes() == written
    assert read.without_seek().to_bytes() == plain
    other = data.draw(st.integers(0, 8))
    assert read.with_seek(other).to_bytes() == frame.with_seek(other).to_bytes()
    assert np.array_equal(gcodec.decode(written, key=key), x)
    acc = np.ones(x.shape, np.float32)
    gcodec.decode_add(written, acc, key=key)
    assert np.array_equal(acc, x + 1)
    assert np.array_equal(frame.codec.decode(read.payload, x.shape), x)
    end_to_end = written + plain + written
    assert [f.seek is None for f in gcodec.iter_frames(end_to_end, key=key)] == [
        *(indexed.seek is None, True, indexed.seek is None)
    ]


def test_a_table_of_another_block_size_is_replaced() -> None:
    frame = frame_with_table(100, "dense", 3)
    assert frame.seek is not None
    wrong = SeekTable(3, np.roll(frame.seek.lengths, 1))
    lying = gcodec.Frame(frame.codec, "float32", (100,), frame.payload._replace(seek=wrong))
    with pytest.raises(Corrupt):
        lying.decode()
    assert lying.with_seek(2).to_bytes() == frame.with_seek(2).to_bytes()
    assert np.array_equal(lying.without_seek().decode(), levels(100))


@pytest.mark.parametrize(
    "spec", ["raw", "sign", "mxnet-2bit", "mxnet-2bit:form=sparse,threshold=1,index=bitmap"]
)
def test_codecs_without_blocks_have_no_table(spec: str) -> None:
    frame = Frame.from_bytes(gcodec.encode(levels(100), spec))
    assert frame.codec.seek_blocks is None
    assert frame.with_seek() is frame
    for section in ("000100", "00010101", "0001"):
        refused(with_section(frame, bytes.fromhex(section)), match="has no blocks")
    table = SeekTable(7, np.array([1], np.uint64))
    with pytest.raises(Corrupt, match="no blocks"):
        frame.codec.decode(frame.payload._replace(seek=table), 100)


@pytest.mark.parametrize("log2_block", [-1, 63, 1.0, True, "12"])
def test_invalid_block_sizes_are_refused(log2_block: Any) -> None:
    for spec in ("raw", "test-unary:form=dense"):
        frame = Frame.from_bytes(gcodec.encode(levels(5), spec))
        with pytest.raises(ParameterError, match="log2_block"):
            frame.with_seek(log2_block)
    with pytest.raises(ParameterError, match="log2_block"):
        SeekTable(log2_block, np.ones(3, np.uint64))


@pytest.mark.parametrize(
    ("lengths", "advances"),
    [
        ([1, 2], None),
        (np.ones(2, np.int64), None),
        (np.ones((2, 1), np.uint64), None),
        (np.ones(2, np.uint64), np.ones(3, np.uint64)),
        (np.ones(2, np.uint64), np.ones(2, np.float32)),
        (np.full(2, 2**62, np.uint64), None),
        (np.full(3, 2**64 - 1, np.uint64), None),
        (np.ones(2, np.uint64), np.full(2, 2**63, np.uint64)),
    ],
)
def test_invalid_numbers_are_refused(lengths: Any, advances: Any) -> None:
    with pytest.raises(ParameterError, match=r"lengths|advances"):
        SeekTable(3, lengths, advances)


@pytest.mark.parametrize(
    "states",
    [
        *(np.ones(shape, np.uint32) for shape in ((2, 31), (1, 32), (3, 32), (64,))),
        *(np.ones((2, 32), np.int32), np.ones((2, 32), np.uint64), [[1] * 32] * 2),
    ],
    ids=lambda states: str(np.shape(states)),
)
def test_states_of_another_kind_are_refused(states: Any) -> None:
    lengths = np.ones(2, np.uint64)
    assert SeekTable(5, lengths, states=np.ones((2, 32), np.uint32)).count == 2
    with pytest.raises(ParameterError, match=r"^states"):
        SeekTable(5, lengths, states=states)


def test_empty_blocks_do_not_count_as_overflow() -> None:
    """Two equal sums do not show that the larger numbers wrapped around."""
    table = SeekTable(3, np.array([2**62, 0, 0, 5], np.uint64))
    assert table.offsets.tolist() == [0, 2**62, 2**62, 2**62, 2**62 + 5]


# --- qsgd on a real gradient --------------------------------------------------------------------


@functools.cache
def gradient() -> np.ndarray:
    """Return all tensors of the example, concatenated."""
    with open_dump(EXAMPLE) as dump:
        tensors = [dump.load(entry).reshape(-1) for entry in dump.entries]
    return np.concatenate(tensors)


REAL = [
    *("qsgd:form=dense", "qsgd:form=sparse", "qsgd:s=255,form=dense,bucket=512"),
    *("qsgd:s=1,form=sparse,bucket=100", "qsgd:s=20,form=dense,code=rice"),
    *("qsgd:s=3,bucket=64,form=sparse,code=rice", "qsgd:s=1000,form=dense,norm=max,bucket=4096"),
]


@pytest.mark.parametrize("spec", REAL)
def test_real_gradients_decode_equally_with_any_table(spec: str) -> None:
    x = gradient()
    data = gcodec.encode(x, spec, name="w", key=b"k")
    frame = Frame.from_bytes(data, key=b"k")
    bare = frame.without_seek()
    expected = bare.decode()
    values = frame.codec.seek_blocks == "values"
    sent = np.count_nonzero(expected) if values else x.size
    assert (frame.seek is not None) == (sent > 4096)
    for log2_block in (0, 7, 12, 16, 40):
        indexed = frame.with_seek(log2_block)
        assert indexed.seek is not None
        assert indexed.seek.count == -(-sent >> log2_block)
        assert (indexed.to_bytes() == data) == (log2_block == 12 and frame.seek is not None)
        read = Frame.from_bytes(indexed.to_bytes(), key=b"k")
        assert read.without_seek().to_bytes() == bare.to_bytes()
        assert np.array_equal(read.decode(), expected)
        acc = np.zeros_like(x)
        read.decode_add(acc)
        assert np.array_equal(acc, expected + np.float32(0))
        if log2_block >= 7:
            section = reference.parse(indexed.to_bytes(), b"k")["seek"]
            assert section == written(log2_block, columns_of(indexed.seek))


@pytest.mark.parametrize("spec", REAL[:2])
def test_wrong_tables_of_real_gradients_are_refused(spec: str) -> None:
    frame = Frame.from_bytes(gcodec.encode(gradient(), spec)).with_seek(6)
    assert frame.seek is not None
    columns = columns_of(frame.seek)
    refused(with_section(frame, written(6, [numbers[::-1] for numbers in columns])))
    for column, i in itertools.product(range(len(columns)), (0, 1, len(columns[0]) - 2)):
        for shift in (1, 2, 64):
            changed = [list(numbers) for numbers in columns]
            changed[column][i] -= shift
            refused(with_section(frame, written(6, changed)))
            changed[column][i + 1] += shift
            refused(with_section(frame, written(6, changed)))
            changed[column][i + 1] += shift
            refused(with_section(frame, written(6, changed)))


# --- tables by default --------------------------------------------------------------------------


@forms
def test_encoders_add_tables_to_large_tensors(form: str) -> None:
    codec = gcodec.parse(f"test-unary:form={form}")
    for n in (1 << 16) - 1, 1 << 16, 300_001:
        data = gcodec.encode(levels(n), codec)
        frame = Frame.from_bytes(data)
        assert (frame.seek is not None) == (n >= 1 << 16)
        assert np.array_equal(frame.decode(), levels(n))
        assert np.array_equal(frame.without_seek().decode(), levels(n))
        if frame.seek is not None:
            assert frame.seek.log2_block == 12
            assert frame.seek.nbytes <= frame.payload.data.size / 100
            assert frame.without_seek().with_seek().to_bytes() == data


def test_encoders_omit_tables_that_are_not_worthwhile() -> None:
    few = levels(1 << 16, density=0.001)
    frame = Frame.from_bytes(gcodec.encode(few, "test-unary:form=sparse"))
    assert frame.seek is None
    indexed = frame.with_seek()
    assert indexed.seek is not None and indexed.seek.count == 1
    table = SeekTable(12, np.full(16, 4096, np.uint64))
    assert table.nbytes == 35
    for n, nbits, good in (
        *((1 << 16, 28_000, True), (1 << 16, 27_992, False), (1 << 16, 27_993, True)),
        *(((1 << 16) - 1, 28_000, False), (1 << 40, 27_992, False)),
    ):
        assert seek.worthwhile(table, n, nbits) == good
    single = SeekTable(16, np.ones(1, np.uint64))
    assert not seek.worthwhile(single, 1 << 16, 28_000)


@pytest.mark.parametrize("spec", ["test-unary", "test-unary:form=dense", "test-unary:form=sparse"])
def test_frames_respect_their_size_bound(spec: str) -> None:
    codec = gcodec.parse(spec)
    for n in (0, 1, 4096, (1 << 16) - 1, 1 << 16, 100_000):
        # The longest code words bring the payload near its bound.
        for x in (np.full(n, 4, np.float32), np.full(n, -4, np.float32), levels(n)):
            data = gcodec.encode(x, codec, name="w", key=b"k")
            assert len(data) <= codec.max_encoded_nbytes(n, "w")
    dense = gcodec.parse("test-unary:form=dense")
    buffer = bytearray(dense.max_encoded_nbytes(1 << 16))
    size = gcodec.encode(levels(1 << 16), dense, out=buffer)
    frame = Frame.from_bytes(buffer[:size])
    assert frame.seek is not None and frame.nbytes == size


def test_bounds_of_codecs_without_blocks_are_as_before() -> None:
    n = 1 << 20
    assert gcodec.parse("raw").max_encoded_nbytes(n) < 4 * n + 200


# --- refusals -----------------------------------------------------------------------------------


@each_spec
@pytest.mark.parametrize("log2_block", [0, 2, 4, 6])
def test_changed_numbers_are_refused(form: str, log2_block: int) -> None:
    frame = frame_with_table(40, form, log2_block)
    assert frame.seek is not None
    columns = columns_of(frame.seek)
    good = with_section(frame, written(log2_block, columns))
    assert np.array_equal(gcodec.decode(good), plain(frame))
    for column in range(len(columns)):
        for i, number in enumerate(columns[column]):
            near = 5 if LONG else 1
            for other in {*range(max(number - near, 0), number + near + 1), 0, 255, 2**64 - 1}:
                if other != number:
                    changed = [list(numbers) for numbers in columns]
                    changed[column][i] = other
                    refused(with_section(frame, written(log2_block, changed)))


@each_spec
@pytest.mark.parametrize("log2_block", [0, 2, 4])
def test_moved_block_boundaries_are_refused(form: str, log2_block: int) -> None:
    """The sums remain valid, but a block starts within a code word."""
    frame = frame_with_table(40, form, log2_block)
    assert frame.seek is not None
    columns = columns_of(frame.seek)
    for column in range(len(columns)):
        pairs = itertools.permutations(range(len(columns[column])), 2)
        for i, j in thinned(((i, j) for i, j in pairs if abs(i - j) <= 2 or i * j == 0), 7):
            for shift in range(1, min(columns[column][i], 8) + 1):
                changed = [list(numbers) for numbers in columns]
                changed[column][i] -= shift
                changed[column][j] += shift
                refused(with_section(frame, written(log2_block, changed)))


@each_spec
def test_changed_bytes_are_refused(form: str) -> None:
    frame = frame_with_table(60, form, 3)
    section = section_of(frame)
    for at, byte in thinned(itertools.product(range(len(section)), range(256)), 7):
        if byte != section[at]:
            changed = section[:at] + bytes([byte]) + section[at + 1 :]
            with pytest.raises(FormatError) as caught:
                gcodec.decode(with_section(frame, changed))
            # A larger table may exceed the bytes.
            assert caught.type in (Corrupt, Truncated)


@each_spec
def test_tables_of_other_lengths_are_refused(form: str) -> None:
    frame = frame_with_table(60, form, 3)
    assert frame.seek is not None
    columns = columns_of(frame.seek)
    count = len(columns[0])
    for changed in (
        [numbers[:-1] for numbers in columns],
        [numbers + [0] for numbers in columns],
        [numbers + [1] for numbers in columns],
        [numbers * 2 for numbers in columns],
        [[0] + numbers for numbers in columns],
        [[] for _ in columns],
    ):
        refused(with_section(frame, written(3, changed)))
    section = section_of(frame)
    refused(with_section(frame, section + section))
    refused(with_section(frame, section[:-1]))
    for log2_block in (0, 2, 4, 62):
        refused(with_section(frame, written(log2_block, columns)))
    for log2_block in (63, 64, 128, 255):
        refused(with_section(frame, bytes([log2_block]) + section[1:]), match=r"2\^")
    for width in (0, 3, 5, 16, 255):
        refused(with_section(frame, section[:1] + bytes([width]) + section[2:]), match="bytes")
    for width in (2, 4, 8):
        refused(with_section(frame, written(3, columns, width)), match="wider")
    refused(with_section(frame, section[:2] + bytes([count | 0x80, 0]) + section[3:]), match="LEB")


@each_spec
@pytest.mark.parametrize("count", [100, 2**20, 2**32, 2**62, 2**64 - 1])
def test_tables_larger_than_the_frame_are_refused(form: str, count: int) -> None:
    frame = frame_with_table(60, form, 3)
    gcodec.decode(frame)  # imports modules, which is not to be measured
    for width in (1, 8):
        data = with_section(frame, bytes([3, width]) + leb128.encode(count))
        tracemalloc.start()
        try:
            refused(data, Truncated, "end too early")
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("n", [2**28, 2**62, 2**64 - 1])
@forms
def test_tables_for_many_elements_take_little_memory(form: str, n: int) -> None:
    """The bytes of the frame bound the allocated memory, whatever the shape."""
    count = 2000
    columns = [[1] * count, [1] * count][: WORDS[form]]
    codec = gcodec.parse(f"test-unary:form={form}")
    payload = PREAMBLE + b"\xff" * (count // 8)
    data = reference.build(
        *(201, 1, (n,), codec.write_parameters(), b"", payload, 8 * len(payload)),
        seek=written(0, columns),
    )
    tracemalloc.start()
    try:
        with contextlib.suppress(FormatError):  # a sparse table may be valid
            Frame.from_bytes(data, limits=Limits(1 << 62, 1 << 62))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "columns",
    [
        [[2**63, 2**63]],
        [[2**64 - 1, 2]],
        [[2**64 - 1, 2**64 - 1]],
    ],
)
def test_overflowing_sums_are_refused(columns: list[list[int]]) -> None:
    dense, sparse = frame_with_table(60, "dense", 5), frame_with_table(60, "sparse", 4)
    assert dense.seek is not None and sparse.seek is not None
    assert dense.seek.count == sparse.seek.count == 2
    refused(with_section(dense, written(5, columns)), match="adds up")
    good = columns_of(sparse.seek)
    refused(with_section(sparse, written(4, [*columns, good[1]])), match="adds up")
    refused(with_section(sparse, written(4, [good[0], *columns])), match="adds up")


@pytest.mark.parametrize("advances", [[15, 1], [16, 0], [15, 0]])
def test_blocks_of_fewer_elements_than_values_are_refused(advances: list[int]) -> None:
    """A reader of the header refuses them, before it reads the payload."""
    frame = frame_with_table(60, "sparse", 4)
    assert frame.seek is not None and frame.seek.count == 2
    data = with_section(frame, written(4, [columns_of(frame.seek)[0], advances]))
    with pytest.raises(Corrupt, match="a block of fewer elements than values"):
        Frame.from_bytes(data)


def test_tables_that_exceed_the_tensor_are_refused() -> None:
    """A reader of the header refuses them, before it reads the payload."""
    dense, sparse = frame_with_table(60, "dense", 5), frame_with_table(60, "sparse", 4)
    assert dense.seek is not None and sparse.seek is not None
    (lengths,), (bits, advances) = columns_of(dense.seek), columns_of(sparse.seek)
    for frame, log2_block, columns, match in (
        (dense, 5, [[lengths[0], dense.payload.nbits]], "bits, the payload"),
        (sparse, 4, [bits, [advances[0], 60]], "passes the 60 elements"),
        (sparse, 4, [[bits[0], sparse.payload.nbits], advances], "bits, the payload"),
    ):
        with pytest.raises(Corrupt, match=match):
            Frame.from_bytes(with_section(frame, written(log2_block, columns)))
    other = frame_with_table(90, "dense", 5)
    with pytest.raises(Corrupt, match=r"3 blocks of 2\^5 for 60 elements"):
        dense.codec.decode(dense.payload._replace(seek=other.seek), 60)


@each_spec
def test_changed_sums_are_refused(form: str) -> None:
    frame = frame_with_table(20000, form, 0)
    section = section_of(frame)
    assert frame.seek is not None
    sums = [s for s in (frame.seek.offsets, frame.seek.positions) if s is not None]
    width, at = section[1], 2 + len(leb128.encode(frame.seek.count))
    for block in range(4096, frame.seek.count, 4096):
        at += 4096 * width * len(sums)
        for one in sums:
            assert section[at : at + 8] == struct.pack("<Q", one[block])
            for bit in (0, 1, 7, 30, 63):
                changed = bytearray(section)
                changed[at + bit // 8] ^= 1 << bit % 8
                refused(with_section(frame, bytes(changed)), match="its own sums")
            at += 8
    assert at > 4096


def test_tables_with_other_blocks_are_refused() -> None:
    dense, sparse = frame_with_table(60, "dense", 3), frame_with_table(60, "sparse", 3)
    assert dense.seek is not None and sparse.seek is not None
    for frame, other in ((dense, sparse), (sparse, dense)):
        assert other.seek is not None
        with pytest.raises(Corrupt, match="other blocks"):
            frame.codec.decode(frame.payload._replace(seek=other.seek), 60)
        with pytest.raises(FormatError):
            gcodec.decode(with_section(frame, section_of(other)))


def test_tables_of_other_payloads_are_refused() -> None:
    frames = [
        frame_with_table(60, "dense", 3),
        frame_with_table(61, "dense", 3),
        frame_with_table(62, "dense", 3),
    ]
    for one, other in itertools.permutations(frames, 2):
        with pytest.raises(Corrupt):
            one.codec.decode(one.payload._replace(seek=other.seek), one.size)


@each_spec
def test_an_empty_tensor_has_no_table(form: str) -> None:
    frame = Frame.from_bytes(gcodec.encode(levels(0), SPECS[form]))
    assert frame.with_seek() is frame
    refused(with_section(frame, bytes.fromhex("000100")))
    refused(with_section(frame, bytes.fromhex("00010100" + "00" * (1 + ("sparse" in form)))))


@each_spec
def test_damaged_frames_are_refused(form: str) -> None:
    frame = frame_with_table(60, form, 3, name="w")
    data = frame.to_bytes()
    for length in range(len(data)):
        with pytest.raises(FormatError) as caught:
            gcodec.decode(data[:length])
        assert caught.type is Truncated
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            gcodec.decode(bytes(damaged))


def test_a_table_of_an_unknown_codec() -> None:
    frame = frame_with_table(60, "dense", 3)
    data = bytearray(frame.to_bytes())
    data[5] = 100
    refused(bytes(data), Unsupported, "codec id 100")


def test_tags_cover_the_table() -> None:
    frame = frame_with_table(60, "dense", 3, key=b"k")
    data = frame.to_bytes()
    assert np.array_equal(gcodec.decode(data, key=b"k"), levels(60))
    other = frame.without_seek().with_seek(2).to_bytes()
    for wrong in (data[:-16] + other[-16:], other[:-16] + data[-16:]):
        with pytest.raises(Corrupt, match="tag"):
            gcodec.decode(wrong, key=b"k")


@given(st.data())
@examples(100)
def test_arbitrary_sections(data: st.DataObject) -> None:
    """A frame with an arbitrary section is refused, or decodes as without a table."""
    form = data.draw(st.sampled_from(list(SPECS)))
    frame = frame_with_table(
        data.draw(st.sampled_from([9, 64, 200])), form, data.draw(st.integers(0, 8))
    )
    section = bytearray(section_of(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(section)))
        piece = data.draw(st.binary(max_size=4))
        kept = data.draw(st.sampled_from([0, len(piece)]))
        section[at : at + kept] = piece
    changed = with_section(frame, bytes(section))
    try:
        decoded = gcodec.decode(changed)
    except FormatError as error:
        assert type(error) in (Corrupt, Truncated)
        return
    assert np.array_equal(decoded, plain(frame))
    # A payload has a single table for each block size, and a table has a single form.
    read = Frame.from_bytes(changed)
    assert read.seek is not None
    assert read.to_bytes() == changed
    assert read.without_seek().with_seek(read.seek.log2_block).to_bytes() == changed


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [
        ("ecsq:nmse=0.3", None),
        ("qsgd:code=rans,s=15,bucket=512", None),
        ("terngrad:pack=rans", None),
        ("minifloat:code=huffman", None),
        ("qsgd:bucket=512", None),
        ("topk:ratio=0.3,index=eliasfano", None),
        ("topk:ratio=0.3,index=rans", None),
        ("qsgd:code=rans,s=1", 9),
    ],
)
def test_with_seek_adds_the_table_of_the_encoder(spec: str, nbytes: int | None) -> None:
    """The encoder may use larger blocks, because states would take too many bytes."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(700_000) * np.exp(rng.standard_normal(700_000))).astype(np.float32)
    encoded = gcodec.Frame.from_bytes(gcodec.encode(x, spec, seed=1))
    assert encoded.seek is not None
    assert nbytes is None or encoded.seek.nbytes == nbytes
    added = encoded.without_seek().with_seek()
    assert added.to_bytes() == encoded.to_bytes()
    assert encoded.with_seek() is encoded
    if encoded.seek.blocks == "states" and encoded.seek.log2_block == 18:
        # A table that is too large for its payload is replaced.
        large = encoded.with_seek(16)
        assert large.seek is not None and large.seek.nbytes > encoded.seek.nbytes
        assert large.with_seek().to_bytes() == encoded.to_bytes()


def test_without_a_worthwhile_table_the_smallest_is_added() -> None:
    x = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
    encoded = gcodec.Frame.from_bytes(gcodec.encode(x, "qsgd:code=rans,s=1"))
    added = encoded.with_seek()
    assert encoded.seek is None and added.seek is not None
    assert added.seek.nbytes == min(encoded.with_seek(log2).seek.nbytes for log2 in (16, 18))
