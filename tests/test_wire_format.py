"""Execute the specification: every ``wire`` block of docs/wire-format.md, in both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from golden import tree, vector
from reference import crc32c, halves, leb128, philox, sums, universal
from reference import frame as reference_frame

import gcodec
from gcodec import entropy
from gcodec.codec import registered
from gcodec.feedback import derive_seed
from gcodec.kernels.numeric import convert, reduce
from gcodec.kernels.numeric.philox import words
from gcodec.wire import primitives

PAGE = Path(__file__).parent.parent / "docs" / "wire-format.md"
FENCE = re.compile(r"^```wire ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_IDS = range(192, 256)  # ids of user-defined codecs
CENTROIDS = {"centroid1": 255, "centroid2": 255, "centroid3": 255, "transform": "none"}


def blocks_of(text: str) -> list[tuple[str, dict[str, str], int]]:
    """Return the label after ``wire``, the fields, and the line of each block."""
    return [
        (actual[1].strip(), vector.fields_of(actual[2]), text.count("\n", 0, actual.start()) + 1)
        for actual in FENCE.finditer(text)
    ]


TEXT = PAGE.read_text("utf-8")
PROSE = " ".join(TEXT.split())
BLOCKS = blocks_of(TEXT)


def keys(fields: dict[str, str], *expected: str) -> list[str]:
    """Check the keys of the fields; return their values."""
    assert fields.keys() == set(expected)
    return [fields[key] for key in expected]


def check_leb128(fields: dict[str, str]) -> None:
    values, written, refused = keys(fields, "value", "bytes", "refused")
    pairs = zip(values.split(), written.replace(".", "").split(), strict=True)
    for value, digits in pairs:
        data = bytes.fromhex(digits)
        assert primitives.leb128(int(value)) == leb128.encode(int(value)) == data
        assert primitives.Reader(data).leb128() == int(value)
        assert leb128.decode(data, 0) == (int(value), len(data))
    for digits in refused.replace(".", "").split():
        with pytest.raises(gcodec.Corrupt):
            primitives.Reader(bytes.fromhex(digits)).leb128()


def check_crc(fields: dict[str, str]) -> None:
    text, value, written = keys(fields, "ascii", "value", "bytes")
    checksum = crc32c.crc32c(text.encode())
    assert f"{checksum:08x}" == value
    assert checksum.to_bytes(4, "little") == bytes.fromhex(written)
    # gcodec's frames use the same CRC: the first example ends with that of its payload.
    frame = gcodec.encode(np.array([0.5], np.float32), "raw")
    assert frame[-4:] == crc32c.crc32c(frame[-8:-4]).to_bytes(4, "little")


def check_refused(fields: dict[str, str]) -> None:
    frame, error = keys(fields, "frame", "error")
    with pytest.raises(gcodec.FormatError) as caught:
        gcodec.decode(vector.data(frame))
    assert type(caught.value).__name__ == error


def check_decoded(fields: dict[str, str]) -> None:
    frame, decoded = keys(fields, "frame", "decoded")
    x = gcodec.decode(vector.data(frame))
    assert [f"{value:g}" for value in x.tolist()] == decoded.split()


def check_sum_squares(fields: dict[str, str]) -> None:
    values, total = keys(fields, "values", "sum")
    x = vector.floats(values, "float32")
    assert reduce.sum_squares(x).hex() == total
    assert float(sums.sum_squares(x)).hex() == total
    one_by_one = 0.0
    for value in x.tolist():
        one_by_one += value * value
    assert one_by_one.hex() != total


def check_philox(fields: dict[str, str]) -> None:
    seed, stream, start, expected = keys(fields, "seed", "stream", "start", "words")
    count = len(expected.split())
    got = words(int(seed), int(start), count, int(stream))
    assert [f"{word:08x}" for word in got.tolist()] == expected.split()
    numbers = range(int(start), int(start) + count)
    slow = [philox.word(int(seed), i, int(stream)) for i in numbers]
    assert slow == got.tolist()


def check_seed(fields: dict[str, str]) -> None:
    seed, step, rank, name, derived = keys(fields, "seed", "step", "rank", "name", "derived")
    got = derive_seed(int(seed), name=name, step=int(step), rank=int(rank))
    assert got == int(derived)


def check_halves(dtype: str, fields: dict[str, str]) -> None:
    wide, narrow, back = keys(fields, "float32", "bits", "back")
    patterns = [int(word, 16) for word in narrow.split()]
    x = np.array([int(word, 16) for word in wide.split()], np.uint32).view(np.float32)
    assert convert.to_16_bits(x, dtype).tolist() == patterns
    assert halves.narrow(x, dtype).tolist() == patterns
    again = convert.from_16_bits(np.array(patterns, np.uint16), dtype)
    assert vector.bits(again) == back.split()
    assert vector.bits(halves.widen(np.array(patterns, np.uint16), dtype)) == back.split()


def check_universal(fields: dict[str, str]) -> None:
    fields = {"refused": "", **fields}
    spec, numbers, expected, refused = keys(fields, "code", "value", "word", "refused")
    code = entropy.parse(spec)
    values = [int(number) for number in numbers.split()]
    words = expected.split()
    assert [code.encode([value]).to01() for value in values] == words
    assert code.lengths(values).tolist() == [len(word) for word in words]
    together = code.encode(values)
    assert together.to01() == universal.encode(spec, values) == "".join(words)
    got, end = code.decode(together, len(values))
    assert (got.tolist(), end) == (values, together.nbits)
    assert universal.decode(spec, "".join(words), len(values)) == (values, end)
    for bits in refused.replace(".", "").split():
        with pytest.raises(gcodec.Corrupt):
            code.decode(bits, 1)
        with pytest.raises(universal.Corrupt):
            universal.decode(spec, bits, 1)


def check_tree(fields: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        tree.check(fields, Path(folder))


def check_members(fields: dict[str, str]) -> None:
    spec, text, grad, decoded, message = keys(
        fields, "codec", "members", "grad", "decoded", "message"
    )
    members = json.loads(text)
    ends = np.cumsum([np.prod(shape, dtype=int) for _, shape in members])[:-1]

    def tensors(words: str) -> dict[str, np.ndarray]:
        parts = np.split(np.array(words.split(), np.float32), ends)
        pairs = zip(members, parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in pairs}

    data = vector.data(message)
    assert gcodec.Feedback(spec).compress_many(tensors(grad)) == data
    actual = gcodec.decode_many(data)
    assert {name: x.tolist() for name, x in actual.items()} == {
        name: x.tolist() for name, x in tensors(decoded).items()
    }


def check_store(fields: dict[str, str]) -> None:
    key, step, grad, anchor, following, after, patch = keys(
        fields, "key", "step", "grad", "anchor", "next", "after", "patch"
    )
    tensors = {int(step): vector.floats(grad, "float32")}
    tensors[int(following)] = vector.floats(after, "float32")
    files = {
        f"{int(step):012}.anchor.gcf": vector.data(anchor),
        f"{int(step):012}-{int(following):012}.patch.gcf": vector.data(patch),
    }
    with TemporaryDirectory() as written, TemporaryDirectory() as read:
        store = gcodec.PatchStore(written, key=key.encode())
        for number, tensor in tensors.items():
            store.publish(number, {"w": tensor})
        assert {path.name: path.read_bytes() for path in Path(written).glob("*.gcf")} == files
        for name, data in files.items():
            (Path(read) / name).write_bytes(data)
        for number, tensor in tensors.items():
            loaded = gcodec.PatchStore(read, key=key.encode()).load(number).tree
            assert loaded.keys() == {"w"} and np.array_equal(loaded["w"], tensor)


PRIMITIVES: dict[str, Callable[[dict[str, str]], None]] = {
    "leb128": check_leb128,
    "crc-32c": check_crc,
    "refused": check_refused,
    "decoded": check_decoded,
    "sum-squares": check_sum_squares,
    "philox": check_philox,
    "seed": check_seed,
    "universal": check_universal,
    "tree": check_tree,
    "tree-refused": tree.check_refused,
    "members": check_members,
    "store": check_store,
    "float16": lambda fields: check_halves("float16", fields),
    "bfloat16": lambda fields: check_halves("bfloat16", fields),
}


@pytest.mark.parametrize(
    ("label", "fields"),
    [block[:2] for block in BLOCKS],
    ids=[f"line{line}-{label}" for label, _, line in BLOCKS],
)
def test_block(label: str, fields: dict[str, str]) -> None:
    if label in PRIMITIVES:
        PRIMITIVES[label](fields)
    else:
        vector.check(label, fields)


def test_page_has_blocks_of_every_kind() -> None:
    labels = [label for label, _, _ in BLOCKS]
    assert set(labels) > set(PRIMITIVES)
    assert len(labels) == len(re.findall("^```wire", TEXT, re.MULTILINE))
    # The test executes every block.
    assert len(re.findall("^```", TEXT, re.MULTILINE)) == 2 * len(labels)


@pytest.mark.parametrize(
    ("name", "cls"),
    [pair for pair in registered(with_base=True).items() if pair[1].id not in OWN_IDS],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_codec_has_a_section_with_examples(name: str, cls: type[gcodec.Codec]) -> None:
    section = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S)
    assert section, f"docs/wire-format.md has no section {name}"
    labels = [label for label, _, _ in blocks_of(section[1])]
    assert any(gcodec.parse(label).name == name for label in labels if label not in PRIMITIVES)
    for declared in cls.declared():
        assert f"`{declared.name}`" in section[1]
    for part in (
        "Source",
        "Parameters",
        "Scalars",
        "Symbols",
        "Layout",
        "Decoding",
        "Freedom of encoders",
        "Special values",
        "Must be refused",
        "Size",
    ):
        assert f"- **{part}**:" in section[1], part
    assert re.search(rf"^\| {cls.id} \| \[`{name}`\]", TEXT, re.MULTILINE)


def test_numbers_of_the_page_agree_with_the_code() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (b?float\d+\w*|u?int\d+|bool) \|$", TEXT, re.MULTILINE))
    assert {name: int(code) for code, name in table.items()} == primitives.DTYPE_CODES
    assert primitives.DTYPE_CODES == vector.DTYPE_CODES and set(primitives.ITEMSIZE) == set(
        primitives.DTYPE_CODES
    )
    assert f"ndim**, 0 to {primitives.MAX_NDIM}" in TEXT
    limits = gcodec.Limits()
    assert (limits.max_elements, limits.max_bytes) == (2**28, 2**31)
    assert "2^28 elements and 2^31 bytes" in TEXT
    assert limits.max_products == 2**36 and "2^36 products of factors" in TEXT


@pytest.mark.parametrize(
    ("spec", "scalars"),
    [
        ("raw:dtype=bfloat16", {}),
        (
            f"qsgd:s={2**24},form=sparse,bucket={2**28 - 2},norm=max,code=rice",
            {"rice": 47, "rice_gap": 47},
        ),
        (
            "mxnet-2bit:server=yes,form=sparse,index=huffman",
            {"threshold": 0.5, "count": 2**28 - 1},
        ),
        ("mxnet-1bit:threshold=2", {}),
        ("terngrad:clip=1,pack=context", {"scale": 1.0}),
        (f"minmax:bits=1,bucket={2**32 - 1},rounding=stochastic", {}),
        ("sign:scale=l2", {"scale": 1.0}),
        (
            f"minifloat:format=e5m2,style=fn,code=context,block={2**32 - 1}",
            {"scale": 1.0, "table": 0},
        ),
        ("topk:value=int8,index=huffman,ratio=0.999", {}),
        (f"topk:value=int8,index=huffman,k={2**62}", {}),
        ("randomk:ratio=0.999,unbiased=yes,value=sign", {"seed": 2**64 - 1}),
        ("dct8:chunk=256x256x1,k=65536,values=float32,index=rice", {}),
        ("powersgd:rank=65536", {}),
        ("ecsq:trellis=yes,step=1.0", {"step": 1.0, **CENTROIDS}),
        ("lowrank:rank=0,trellis=yes,step=1.0", {"step": 1.0, **CENTROIDS}),
        ("lossless:mode=small", {}),
        ("microscale:format=nvfp4,code=context,rounding=stochastic", {"tensor_scale": 0.5}),
        (f"blockwise:block={2**32 - 2},nested=yes,code=rans", {}),
        ("sparseloco:k=65536,chunk=256,bins=256,index=huffman,code=huffman", {}),
    ],
    ids=str,
)
def test_overhead(spec: str, scalars: dict[str, object]) -> None:
    """With the parameters and scalars of each codec that take the most bytes."""
    codec, n = gcodec.parse(spec), 2**28 - 1
    assert "fewer than 2^28 elements takes at most 40 bytes" in PROSE
    assert "of `randomk` at most 48" in PROSE
    fields = [codec.write_parameters(), codec.write_scalars(scalars)]
    sizes = [len(primitives.leb128(n)), len(primitives.leb128(codec.max_payload_nbits(n)))]
    overhead = 8 + sum(1 + len(field) for field in fields) + sum(sizes) + 4 + 4
    assert overhead <= (48 if codec.name == "randomk" else 40)


def test_checksums_of_the_tables() -> None:
    named = re.findall(r"`(gcodec/\S+\.txt)`[^`]*? CRC-32C (0x[0-9a-f]{8})", PROSE)
    assert len(named) == PROSE.count(".txt`") == 3
    for path, checksum in named:
        assert crc32c.crc32c((PAGE.parent.parent / path).read_bytes()) == int(checksum, 16), path


def test_every_prefix_of_an_example_is_truncated() -> None:
    fields = next(fields for label, fields, _ in BLOCKS if label == "mxnet-2bit")
    frame = vector.data(fields["frame"])
    for size in range(len(frame)):
        with pytest.raises(gcodec.Truncated):
            gcodec.decode(frame[:size])
        with pytest.raises(ValueError):
            reference_frame.parse(frame[:size])


def test_frames_concatenate() -> None:
    examples = [f for label, f, _ in BLOCKS if label not in PRIMITIVES and "key" not in f]
    together = b"".join(vector.data(fields["frame"]) for fields in examples)
    frames = list(gcodec.iter_frames(together))
    assert [frame.name for frame in frames] == [fields.get("name") for fields in examples]
    assert b"".join(frame.to_bytes() for frame in frames) == together
    assert list(gcodec.iter_frames(b"")) == []


def test_explicit_defaults_are_accepted() -> None:
    threshold = np.float32(0.5).tobytes()
    payload = bytes.fromhex("e2c00000")
    frames = [
        reference_frame.build(3, 1, (5,), params, threshold, payload, 32)
        for params in (b"", b"\x00")
    ]
    decoded = [gcodec.decode(frame).tolist() for frame in frames]
    assert decoded[0] == decoded[1] == [0.5, -0.5, 0, -0.5, 0.5]


def test_unknown_keys_fail() -> None:
    fields = vector.fields_of("grad 1\ndtype float32\npayload 00\nframe 00\ndecoded 1\ncolor red")
    with pytest.raises(AssertionError, match="unknown"):
        vector.check("raw", fields)
    with pytest.raises(AssertionError):
        check_crc({"ascii": "1", "value": "0", "bytes": "00", "extra": ""})


THRESHOLD, WORD = np.float32(0.5).tobytes(), bytes.fromhex("e2c00000")
GOOD = {
    "codec_id": 3,
    "dtype_code": 1,
    "shape": (5,),
    "params": b"",
    "scalars": THRESHOLD,
    "payload": WORD,
    "nbits": 32,
}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"codec_id": 0}, gcodec.Unsupported),
        ({"codec_id": 2, "scalars": b""}, gcodec.Corrupt),  # no form
        ({"codec_id": 15}, gcodec.Unsupported),
        ({"dtype_code": 0}, gcodec.Unsupported),
        ({"dtype_code": 5}, gcodec.Unsupported),
        ({"params": b"\2"}, gcodec.Unsupported),
        ({"params": bytes(4)}, gcodec.Unsupported),
        ({"scalars": THRESHOLD + b"\0"}, gcodec.Unsupported),
        ({"scalars": b""}, gcodec.Corrupt),
        ({"scalars": THRESHOLD[:3]}, gcodec.Corrupt),
        ({"scalars": bytes(4)}, gcodec.Corrupt),
        ({"scalars": np.float32(np.nan).tobytes()}, gcodec.Corrupt),
        ({"scalars": bytes.fromhex("ffff7f00")}, gcodec.Corrupt),  # the largest subnormal number
        ({"params": b"\1", "scalars": np.float32(4e-7).tobytes()}, gcodec.Corrupt),
        ({"shape": (17,)}, gcodec.Truncated),
        ({"shape": (0,)}, gcodec.Corrupt),
        ({"payload": WORD * 2, "nbits": 64}, gcodec.Corrupt),
        ({"payload": bytes(5), "nbits": 33}, gcodec.Corrupt),
        ({"nbits": 31}, gcodec.Corrupt),
        ({"payload": b"", "nbits": 0}, gcodec.Truncated),
        ({"shape": (2**20, 2**20), "payload": b"", "nbits": 0}, gcodec.LimitExceeded),
        ({"shape": (0, 2**59), "payload": b"", "nbits": 0}, gcodec.Corrupt),
        ({"shape": (2**58,), "payload": b"", "nbits": 0}, gcodec.LimitExceeded),
        ({"codec_id": 1, "scalars": b"", "shape": (1,), "nbits": 31}, gcodec.Corrupt),
        ({"codec_id": 4, "scalars": b"", "payload": b"\0\0\0\1"}, gcodec.Corrupt),
        ({"codec_id": 4, "scalars": b"", "params": b"\0\0"}, gcodec.Corrupt),
        ({"codec_id": 12}, gcodec.Unsupported),
    ],
)
def test_refusals(change: dict[str, object], error: type[gcodec.FormatError]) -> None:
    frame = reference_frame.build(**{**GOOD, **change})
    with pytest.raises(error):
        gcodec.decode(frame)


def f32(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


CLIP = f32(2.5)
TERNGRAD = {
    "codec_id": 5,
    "dtype_code": 1,
    "shape": (6,),
    "params": CLIP + b"\0",
    "scalars": f32(1),
    "payload": b"\x11\x02",
    "nbits": 16,
}
STRIDED = {**TERNGRAD, "params": CLIP + b"\1", "payload": b"\x0a\x55"}
BASE3 = {**TERNGRAD, "params": CLIP + b"\2", "payload": b"\xac\0"}
RANGE = np.array([-1, 1], ">f4").tobytes()
MINMAX = {
    "codec_id": 6,
    "dtype_code": 1,
    "shape": (4,),
    "params": b"\x02\0\0",
    "scalars": b"",
    "payload": RANGE + b"\x2e",
    "nbits": 72,
}
SIGN = {
    "codec_id": 7,
    "dtype_code": 1,
    "shape": (5,),
    "params": b"",
    "scalars": f32(1.2),
    "payload": b"\x40",
    "nbits": 5,
}


@pytest.mark.parametrize(
    ("good", "decoded"),
    [
        (TERNGRAD, [1, 0, 1, 0, -1, 0]),
        (STRIDED, [1, 0, 1, 0, -1, 0]),
        (BASE3, [1, 0, 1, 0, -1, 0]),
        ({**TERNGRAD, "params": f32(-0.0)}, [1, 0, 1, 0, -1, 0]),
        ({**TERNGRAD, "scalars": f32(2**-149)}, [2**-149, 0, 2**-149, 0, -(2**-149), 0]),
        (MINMAX, [-1, np.float32(1 / 3), 1, np.float32(1 / 3)]),
        ({**MINMAX, "params": b"\x02\x04"}, [-1, np.float32(1 / 3), 1, np.float32(1 / 3)]),
        ({**MINMAX, "params": b"\x02\x05\1"}, [-1, np.float32(1 / 3), 1, np.float32(1 / 3)]),
        ({**MINMAX, "payload": RANGE[:4] * 2 + b"\x2e"}, [-1, -1, -1, -1]),
        (SIGN, f32(1.2, -1.2, 1.2, 1.2, 1.2)),
        ({**SIGN, "params": b"\2", "scalars": b""}, [1, -1, 1, 1, 1]),
    ],
)
def test_frames_by_hand(good: dict[str, object], decoded: list[float] | bytes) -> None:
    """Explicit defaults, the limits of ranges, and optional codes of a single-value range."""
    if isinstance(decoded, bytes):
        decoded = np.frombuffer(decoded, "<f4").tolist()
    assert gcodec.decode(reference_frame.build(**good)).tolist() == decoded


@pytest.mark.parametrize("scale", [0.0, -0.0])
def test_scale_of_zero(scale: float) -> None:
    """The test flips the sign bit of the scale for −1 and for the bit 1."""
    for good in (TERNGRAD, STRIDED, BASE3, SIGN):
        frame = reference_frame.build(**{**good, "scalars": f32(scale)})
        got = gcodec.decode(frame)
        minus = 1 if good is SIGN else 4
        assert not got.any()
        assert np.signbit(got[0]) == np.signbit(scale) != np.signbit(got[minus])


@pytest.mark.parametrize(
    ("good", "change", "error"),
    [
        (TERNGRAD, {"payload": b"\x13\x02"}, gcodec.Corrupt),
        (TERNGRAD, {"payload": b"\x11\x12"}, gcodec.Corrupt),  # a pad code
        (TERNGRAD, {"payload": b"\x11\x0e"}, gcodec.Corrupt),
        (TERNGRAD, {"shape": (9,)}, gcodec.Truncated),
        (TERNGRAD, {"shape": (4,)}, gcodec.Corrupt),
        (TERNGRAD, {"nbits": 12, "payload": b"\x11\0"}, gcodec.Corrupt),
        (TERNGRAD, {"scalars": f32(-1)}, gcodec.Corrupt),
        (TERNGRAD, {"scalars": f32(np.inf)}, gcodec.Corrupt),
        (TERNGRAD, {"scalars": f32(np.nan)}, gcodec.Corrupt),
        (TERNGRAD, {"scalars": b""}, gcodec.Corrupt),
        (TERNGRAD, {"params": f32(-1)}, gcodec.Corrupt),
        (TERNGRAD, {"params": f32(np.inf)}, gcodec.Corrupt),
        (TERNGRAD, {"params": f32(np.nan)}, gcodec.Corrupt),
        (TERNGRAD, {"params": CLIP[:3]}, gcodec.Corrupt),
        (TERNGRAD, {"params": CLIP + b"\5"}, gcodec.Unsupported),
        (TERNGRAD, {"params": CLIP + b"\0\0"}, gcodec.Unsupported),
        (STRIDED, {"payload": b"\x0b\x55"}, gcodec.Corrupt),
        (STRIDED, {"payload": b"\x4a\x55"}, gcodec.Corrupt),  # pad codes
        (STRIDED, {"payload": b"\x0a\x15"}, gcodec.Corrupt),
        (STRIDED, {"payload": b"\x0a\xd5"}, gcodec.Corrupt),
        (STRIDED, {"shape": (8,)}, gcodec.Truncated),
        (STRIDED, {"shape": (3,)}, gcodec.Corrupt),
        (STRIDED, {"shape": (0,), "payload": b"", "nbits": 0}, gcodec.Truncated),
        (STRIDED, {"shape": (0,), "payload": b"\0", "nbits": 8}, gcodec.Corrupt),
        (BASE3, {"payload": b"\xf3\0"}, gcodec.Corrupt),
        (BASE3, {"payload": b"\xff\0"}, gcodec.Corrupt),
        (BASE3, {"payload": b"\xac\3"}, gcodec.Corrupt),  # a pad code
        (BASE3, {"payload": b"\xac\xf3"}, gcodec.Corrupt),
        (BASE3, {"shape": (11,)}, gcodec.Truncated),
        (BASE3, {"shape": (5,)}, gcodec.Corrupt),
        (MINMAX, {"params": b"\0"}, gcodec.Corrupt),
        (MINMAX, {"params": b"\x09"}, gcodec.Corrupt),
        (MINMAX, {"params": b"\x82\0"}, gcodec.Corrupt),
        (MINMAX, {"params": b"\x82"}, gcodec.Corrupt),
        (MINMAX, {"params": b"\x02\x80\x80\x80\x80\x10"}, gcodec.Corrupt),  # 2^32
        (MINMAX, {"params": b"\x02\0\2"}, gcodec.Unsupported),
        (MINMAX, {"params": b"\x02\0\0\0"}, gcodec.Unsupported),
        (MINMAX, {"scalars": f32(1)}, gcodec.Unsupported),
        (MINMAX, {"params": b"\x02\x02"}, gcodec.Truncated),  # two ranges
        (MINMAX, {"params": b"\x01"}, gcodec.Corrupt),
        (MINMAX, {"shape": (5,)}, gcodec.Truncated),
        (MINMAX, {"shape": (3,)}, gcodec.Corrupt),
        (MINMAX, {"shape": (0,)}, gcodec.Corrupt),
        (SIGN, {"nbits": 8}, gcodec.Corrupt),
        (SIGN, {"nbits": 4}, gcodec.Corrupt),  # as many bytes
        (SIGN, {"shape": (9,)}, gcodec.Truncated),
        (SIGN, {"params": b"\2"}, gcodec.Unsupported),  # and a scale
        (SIGN, {"params": b"\1", "scalars": b""}, gcodec.Corrupt),
        (SIGN, {"params": b"\3"}, gcodec.Unsupported),
        (SIGN, {"scalars": f32(-1)}, gcodec.Corrupt),
        (SIGN, {"scalars": f32(np.inf)}, gcodec.Corrupt),
    ],
)
def test_refusals_of_low_bits(
    good: dict[str, object], change: dict[str, object], error: type[gcodec.FormatError]
) -> None:
    gcodec.decode(reference_frame.build(**good))
    with pytest.raises(error):
        gcodec.decode(reference_frame.build(**{**good, **change}))


QSGD = {
    "codec_id": 2,
    "dtype_code": 1,
    "shape": (4,),
    "params": b"\4\0",
    "scalars": b"",
    "payload": bytes.fromhex("40a000006340"),
    "nbits": 47,
}
SPARSE = {**QSGD, "params": b"\4\1", "payload": bytes.fromhex("40a0000024e0"), "nbits": 44}
RICE = {
    **QSGD,
    "params": b"\4\1\0\0\1",
    "scalars": b"\1\0",
    "payload": bytes.fromhex("40a00000b680"),  # 1 0 11, 01 1 010
    "nbits": 42,
}
PACKED = {
    **QSGD,
    "params": b"\4\0\0\0\2",
    "payload": bytes.fromhex("40a000004050"),  # 4, 0, 5, 0
    "nbits": 48,
}


@pytest.mark.parametrize("good", [QSGD, SPARSE, RICE, PACKED])
def test_frames_of_qsgd_by_hand(good: dict[str, object]) -> None:
    assert gcodec.decode(reference_frame.build(**good)).tolist() == [2.5, 0, -3.75, 0]


@pytest.mark.parametrize(
    ("good", "change", "error"),
    [
        (QSGD, {"params": b""}, gcodec.Corrupt),  # no form
        (QSGD, {"params": b"\4"}, gcodec.Corrupt),
        (QSGD, {"params": b"\0\0"}, gcodec.Corrupt),
        (QSGD, {"params": b"\x81\x80\x80\x08\0"}, gcodec.Corrupt),  # s above 2^24
        (QSGD, {"params": b"\4\2"}, gcodec.Unsupported),
        (QSGD, {"params": b"\4\0\0\2"}, gcodec.Unsupported),
        (QSGD, {"params": b"\4\0\0\0\6"}, gcodec.Unsupported),
        (QSGD, {"params": b"\4\0\0\0\0\0"}, gcodec.Unsupported),
        (QSGD, {"params": b"\4\0\x81" + b"\x80" * 7 + b"\x40"}, gcodec.Corrupt),  # above 2^62
        (QSGD, {"params": b"\4\0\3"}, gcodec.Truncated),  # two norms
        (QSGD, {"scalars": b"\0"}, gcodec.Unsupported),
        (QSGD, {"params": b"\2\0"}, gcodec.Corrupt),  # level 3 of s = 2
        (QSGD, {"shape": (5,)}, gcodec.Truncated),
        (QSGD, {"shape": (3,)}, gcodec.Corrupt),
        (QSGD, {"shape": (0,)}, gcodec.Corrupt),
        (QSGD, {"nbits": 46}, gcodec.Truncated),
        (QSGD, {"nbits": 48}, gcodec.Corrupt),
        (QSGD, {"payload": QSGD["payload"][:4], "nbits": 32}, gcodec.Truncated),
        (QSGD, {"payload": QSGD["payload"][:4], "nbits": 31}, gcodec.Truncated),
        (QSGD, {"payload": b"", "nbits": 0}, gcodec.Truncated),
        (SPARSE, {"params": b"\2\1"}, gcodec.Corrupt),  # level 3 of s = 2
        (SPARSE, {"params": b"\4\1\2"}, gcodec.Truncated),  # of the second norm
        (SPARSE, {"shape": (2,)}, gcodec.Corrupt),
        (SPARSE, {"shape": (0,)}, gcodec.Corrupt),
        (SPARSE, {"nbits": 45}, gcodec.Truncated),  # a gap of 1, and no sign
        (SPARSE, {"nbits": 48}, gcodec.Truncated),
        (SPARSE, {"nbits": 47, "shape": (3,)}, gcodec.Corrupt),  # element 4
        (SPARSE, {"nbits": 43}, gcodec.Truncated),
        (RICE, {"scalars": b"\1"}, gcodec.Corrupt),
        (RICE, {"scalars": b""}, gcodec.Corrupt),
        (RICE, {"scalars": b"\1\x30"}, gcodec.Corrupt),  # above 47
        (RICE, {"scalars": b"\x30\0"}, gcodec.Corrupt),
        (RICE, {"scalars": b"\1\0\0"}, gcodec.Unsupported),
        (RICE, {"params": b"\2\1\0\0\1"}, gcodec.Corrupt),  # level 3 of s = 2
        (RICE, {"shape": (2,)}, gcodec.Corrupt),
        (PACKED, {"params": b"\4\1\0\0\2"}, gcodec.Corrupt),  # and sparse
        (PACKED, {"params": b"\2\0\0\0\2"}, gcodec.Corrupt),  # 3 bits each
        (PACKED, {"params": b"\x10\0\0\0\2"}, gcodec.Truncated),  # 6 bits each
        (PACKED, {"shape": (3,)}, gcodec.Corrupt),
        (PACKED, {"shape": (5,)}, gcodec.Truncated),
        (PACKED, {"payload": bytes.fromhex("40a000009050")}, gcodec.Corrupt),  # z = 9
    ],
)
def test_refusals_of_qsgd(
    good: dict[str, object], change: dict[str, object], error: type[gcodec.FormatError]
) -> None:
    frame = reference_frame.build(**{**good, **change})
    with pytest.raises(error):
        gcodec.decode(frame)


@pytest.mark.parametrize("norm", ["80000000", "ff800000", "7f800000", "7fc00000", "bf800000"])
def test_norms(norm: str) -> None:
    for good in (QSGD, SPARSE, RICE, PACKED):
        payload = bytes.fromhex(norm) + bytes(good["payload"])[4:]
        with pytest.raises(gcodec.Corrupt):
            gcodec.decode(reference_frame.build(**{**good, "payload": payload}))


@pytest.mark.parametrize("low", ["bf800000", "80000000", "ff800000", "7fc00000", "ffc00000"])
@pytest.mark.parametrize("high", ["3f800000", "80000000", "7f800000", "7f800001", "c0000000"])
def test_ranges(low: str, high: str) -> None:
    """The invalid range is in the first or the second bucket; only -1 to 1 is valid."""
    ends = bytes.fromhex(low + high)
    for payload in (ends + RANGE + b"\x2e", RANGE + ends + b"\x2e"):
        change = {"params": b"\x02\x02", "payload": payload, "nbits": 136}
        frame = reference_frame.build(**{**MINMAX, **change})
        if (low, high) == ("bf800000", "3f800000"):
            assert np.isfinite(gcodec.decode(frame)).all()
        else:
            with pytest.raises(gcodec.Corrupt):
                gcodec.decode(frame)


@pytest.mark.parametrize("good", [MINMAX, SIGN], ids=["minmax", "sign"])
def test_fill_is_zero(good: dict[str, object]) -> None:
    """The test builds frames without the reference, which does not write such bytes."""
    codec = gcodec.parse("minmax:bits=2" if good is MINMAX else "sign")
    payload = bytes(good["payload"])  # type: ignore[call-overload]
    n, scalars = (3, {}) if good is MINMAX else (5, {"scale": 1})
    for last in range(256):
        data = payload[:-1] + bytes([last])
        if last % (4 if good is MINMAX else 8):
            with pytest.raises(gcodec.Corrupt):
                codec.decode(data, n, **scalars)
        else:
            codec.decode(data, n, **scalars)


@pytest.mark.parametrize("bit", [3, 4, 5, 6, 7])
def test_reserved_flags(bit: int) -> None:
    frame = bytearray(reference_frame.build(**GOOD))
    frame[4] |= 1 << bit
    with pytest.raises(gcodec.Unsupported):
        gcodec.decode(bytes(frame))


@pytest.mark.parametrize("pattern", ["00008000", "ffff7f7f", "0000807f", "01000000"])
def test_range_of_thresholds(pattern: str) -> None:
    scalars = bytes.fromhex(pattern)
    t = np.frombuffer(scalars, np.float32)[0]
    normal = t >= np.float32(2**-126)
    frame = reference_frame.build(**{**GOOD, "scalars": scalars})
    if normal:
        assert gcodec.decode(frame).tolist() == [t, -t, 0, -t, t]
        assert gcodec.Frame.from_bytes(frame).to_bytes() == frame
    one_bit = {**GOOD, "codec_id": 4, "params": scalars, "scalars": b"", "payload": bytes(4)}
    frame = reference_frame.build(**one_bit)
    assert gcodec.decode(frame).tolist() == [-1] * 5
    assert gcodec.Frame.from_bytes(frame).to_bytes() == frame


@pytest.mark.parametrize("values", [[3e38] * 4, [0.0] * 4, [1e-40] * 4, []])
def test_automatic_threshold_stays_in_range(values: list[float]) -> None:
    x = np.array(values, np.float32)
    payload = gcodec.parse("mxnet-2bit:threshold=auto").encode(x)
    rms = (float(sums.sum_squares(x)) / max(x.size, 1)) ** 0.5
    largest = float(np.finfo(np.float32).max)
    expected = np.float32(min(max(1.25 * rms, 2.0**-126), largest))
    assert np.float32(payload.scalars["threshold"]) == expected


def test_empty_arrays_may_have_large_dimensions() -> None:
    frame = reference_frame.build(**{**GOOD, "shape": (0, 2**58), "payload": b"", "nbits": 0})
    assert gcodec.decode(frame).shape == (0, 2**58)
