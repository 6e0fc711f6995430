"""The public interface of codes: specs, bits, accepted values, refused inputs."""

from __future__ import annotations

import array
import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from bitarray import bitarray, frozenbitarray
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Corrupt, ParameterError, Truncated, entropy
from gcodec.entropy import Bits, universal

SPECS = ["omega", "gamma", "delta", "unary", "rice:k=3", "golomb:b=10", "expgolomb:k=2"]
LARGEST = 2**64 - 1


# --- specs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "canonical", "expression"),
    [
        ("omega", "omega", "Omega()"),
        ("gamma", "gamma", "Gamma()"),
        ("delta", "delta", "Delta()"),
        ("unary", "unary", "Unary()"),
        ("rice", "rice", "Rice()"),
        ("rice:k=0", "rice", "Rice()"),
        ("rice:k=3", "rice:k=3", "Rice(k=3)"),
        ("rice:k=0x3f", "rice:k=63", "Rice(k=63)"),
        ("golomb", "golomb", "Golomb()"),
        ("golomb:b=1", "golomb", "Golomb()"),
        ("golomb:b=10", "golomb:b=10", "Golomb(b=10)"),
        (f"golomb:b={LARGEST}", f"golomb:b={LARGEST}", f"Golomb(b={LARGEST})"),
        ("expgolomb", "expgolomb", "ExpGolomb()"),
        ("expgolomb:k=2", "expgolomb:k=2", "ExpGolomb(k=2)"),
    ],
)
def test_canonical_forms(spec: str, canonical: str, expression: str) -> None:
    code = entropy.parse(spec)
    assert (str(code), repr(code)) == (canonical, expression)
    assert entropy.parse(canonical) == code == eval(expression, vars(entropy))
    assert hash(entropy.parse(canonical)) == hash(code)
    assert entropy.parse(code) is code
    assert pickle.loads(pickle.dumps(code)) == code
    name, _, setting = canonical.partition(":")
    values = dict([setting.split("=")]) if setting else {}
    assert entropy.parse({"name": name, **{k: int(v) for k, v in values.items()}}) == code


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("", "code=''"),
        ("elias", "one of omega, gamma, delta, unary, rice, golomb, expgolomb"),
        ("Omega", "one of omega"),
        ("qsgd", "one of omega"),
        ("omega:", "name:key=value"),
        ("omega:k=1", "omega has no parameters"),
        ("rice:b=1", "rice has the parameters k"),
        ("rice:k=", "k=''"),
        ("rice:k=64", "k=64: must be an integer from 0 to 63"),
        ("rice:k=-1", "k=-1"),
        ("rice:k=1.0", "k='1.0'"),
        ("golomb:b=0", "b=0: must be an integer from 1"),
        (f"golomb:b={2**64}", "b="),
        ("expgolomb:k=64", "k=64"),
        ({"name": "rice", "k": 1.0}, "k=1.0"),
        ({"name": "rice", "k": True}, "k=True"),
        ({"k": 1}, 'must be a mapping with a "name"'),
        (None, "code=None"),
        (3, "code=3"),
    ],
)
def test_refused_specs(spec: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match.replace("*", r"\*")):
        entropy.parse(spec)


def test_package_is_an_attribute_of_gcodec() -> None:
    assert gcodec.entropy is entropy
    names = [spec.partition(":")[0] for spec in SPECS]
    assert list(entropy.CODES)[: len(names)] == names
    for name, cls in entropy.CODES.items():
        assert getattr(entropy, cls.__name__) is cls
        assert cls.name == name


def test_import_is_light() -> None:
    script = (
        "import sys, gcodec\n"
        "gcodec.entropy.parse('rice:k=3'), gcodec.entropy.Bits.from01('01')\n"
        "print(*{'numba', 'bitarray', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


# --- bits ---------------------------------------------------------------------------------------


@given(st.text("01", max_size=300))
def test_bits_of_text(text: str) -> None:
    bits = Bits.from01(text)
    assert (bits.to01(), bits.nbits, len(bits)) == (text, len(text), len(text))
    padded = text + "0" * (-len(text) % 8)
    assert bits.tobytes() == int("1" + padded, 2).to_bytes(len(padded) // 8 + 1, "big")[1:]
    assert bits == Bits(bits.tobytes(), bits.nbits) == Bits(bits.data, len(text))
    assert hash(bits) == hash(Bits(bits.tobytes(), bits.nbits))
    assert bits != Bits.from01(text + "0")
    result = bits.to_bitarray()
    assert isinstance(result, bitarray)
    assert (result.to01(), result.padbits) == (text, -len(text) % 8)
    assert result.tobytes() == bits.tobytes()
    for order in ("big", "little"):
        assert Bits.from_bitarray(bitarray(text, endian=order)) == bits
        assert Bits.from_bitarray(frozenbitarray(text, endian=order)) == bits


def test_bits_repr_is_evaluable() -> None:
    assert repr(Bits.from01("10 100 0")) == "Bits.from01('101000')"
    assert repr(Bits(b"")) == "Bits.from01('')"
    full = Bits(bytes(range(8)))
    assert eval(repr(full)) == full
    assert repr(Bits(bytes(9), 65)) == f"<Bits {'0' * 64}… of 65 bits>"


def test_bits_keep_no_read_only_view_of_memory_that_can_change() -> None:
    memory = bytearray(b"\xa0")
    view = memoryview(memory).toreadonly()
    bits = Bits(view, 3), Bits(np.asarray(view), 3)
    memory[0] = 0
    assert [each.to01() for each in bits] == ["101", "101"]


def test_bits_are_immutable() -> None:
    memory = bytearray(b"\xa0")
    bits = Bits(memory, 3)
    memory[0] = 0
    assert bits.to01() == "101"
    for result in (bits, entropy.parse("gamma").encode([5]), Bits.from01("11")):
        with pytest.raises(ValueError, match="read-only"):
            result.data[0] = 1
        with pytest.raises(AttributeError):
            result.nbits = 7  # type: ignore[misc]
        for same in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert same == result
            assert not same.data.flags.writeable
    result = bits.to_bitarray()
    result[0] = 0
    assert bits.to01() == "101"
    assert bits != "101"
    assert bits != b"\xa0"


@pytest.mark.parametrize(
    ("data", "nbits", "kind"),
    [
        (b"", 1, Truncated),
        (b"\xff", 9, Truncated),
        (b"\xff", 2**62, Truncated),
        (b"\xff", 7, Corrupt),
        (b"\x01", 3, Corrupt),
        (b"\x00", 0, Corrupt),
        (b"\x80\x00", 8, Corrupt),
        (b"\x80", -1, ParameterError),
        (b"\x80", 1.0, ParameterError),
        (b"\x80", True, ParameterError),
        (b"\x80", 2**63, ParameterError),
        ("\x80", 8, TypeError),
        (5, 8, TypeError),
        ([128], 8, TypeError),
        (np.zeros(1, np.int64), 64, TypeError),
        (np.zeros(8, bool), 8, TypeError),
        (np.zeros(4, np.uint8)[::2], 16, TypeError),
        (array.array("I", [1]), 32, TypeError),
    ],
)
def test_contradictory_bits_are_refused(data: Any, nbits: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Bits(data, nbits)


@pytest.mark.parametrize("text", ["2", "01a", "0b1", "-1", "٠١", "0_1"])
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="text="):
        Bits.from01(text)
    with pytest.raises(TypeError):
        Bits.from01(text.encode())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Bits.from_bitarray(text)


def test_bitarray_is_imported_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitarray", None)
    code = entropy.parse("gamma")
    bits = code.encode([5])
    assert code.decode(bits.tobytes(), 1)[0].tolist() == [5]
    for call in (bits.to_bitarray, lambda: Bits.from_bitarray("1")):
        with pytest.raises(ImportError, match="pip install bitarray"):
            call()


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 4],
        (3, 1, 4),
        [np.uint8(3), 1, np.int64(4)],
        [[3], [1], [4]],
        np.array([3, 1, 4]),
        np.array([3, 1, 4], np.uint8),
        np.array([3, 1, 4], ">i4"),
        np.array([[3, 1, 4]], np.uint64),
        np.array([3, 0, 1, 0, 4, 0])[::2],
        np.array([3, 1, 4], object),
        array.array("H", [3, 1, 4]),
        memoryview(array.array("q", [3, 1, 4])),
    ],
)
def test_values_of_any_kind(values: Any) -> None:
    for spec in SPECS:
        code = entropy.parse(spec)
        expected = code.encode(np.array([3, 1, 4], np.uint64))
        assert code.encode(values) == expected
        assert code.lengths(values).sum() == expected.nbits
    read_only = np.array([3, 1, 4], np.uint64)
    read_only.flags.writeable = False
    assert entropy.parse("delta").encode(read_only).to01() == "0101" + "1" + "01100"


def test_single_value_and_empty() -> None:
    code = entropy.parse("gamma")
    assert code.encode(5) == code.encode(np.int8(5)) == code.encode([5])
    assert code.encode(range(1, 4)) == code.encode([1, 2, 3])
    nothing = ([], (), range(0), np.zeros(0, np.int16), np.zeros((3, 0), np.uint64))
    for spec in SPECS:
        code = entropy.parse(spec)
        for values in nothing:
            assert code.encode(values) == Bits(b"")
            assert code.lengths(values).shape == (0,)
            assert code.lengths(values).dtype == np.uint64
        values, end = code.decode(b"", 0)
        assert (values.dtype, values.shape, end) == (np.uint64, (0,), 0)


def test_values_of_torch() -> None:
    torch = pytest.importorskip("torch")
    code = entropy.parse("omega")
    for dtype in (torch.uint8, torch.int64, torch.int32):
        values = torch.tensor([[3, 1], [4, 9]], dtype=dtype)
        assert code.encode(values) == code.encode([3, 1, 4, 9])
    with pytest.raises(TypeError, match="float32"):
        code.encode(torch.ones(3))
    with pytest.raises(TypeError, match="meta"):
        code.encode(torch.ones(3, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [1, 2.5],
        [True],
        ["1"],
        [None],
        [[1], [1, 2]],
        [np.zeros((2, 3), int), np.zeros((2, 4), int)],
        np.ones(3),
        np.ones(3, bool),
        np.ones(3, complex),
        np.array(["1"]),
        np.array([1.0], object),
        np.array([np.True_], object),
        np.array(["2020"], "M8[Y]"),
        np.ma.masked_less(np.arange(3), 1),
        "11",
        b"\x01",
        bytearray(1),
        1.0,
        True,
        None,
        {1, 2},
        {1: 2},
        (n for n in (1, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_non_integers_are_refused(spec: str, values: Any) -> None:
    code = entropy.parse(spec)
    for call in (code.encode, code.lengths):
        with pytest.raises(TypeError, match="values"):
            call(values)


@pytest.mark.parametrize("spec", SPECS)
def test_values_out_of_range(spec: str) -> None:
    code = entropy.parse(spec)
    wrong = [
        ([1, -1], 1, -1),
        ([1, 1, 2**64], 2, 2**64),
        ([10**30], 0, 10**30),
        (np.array([5, -7, -9]), 2, -9),
        (np.array([[1, 2], [3, -(2**63)]]), 3, -(2**63)),
        (np.array([1, 2**64], object), 1, 2**64),
    ]
    if code.first == 1:
        wrong += [([3, 0], 1, 0), (np.array([3, 0], np.uint8), 1, 0)]
    else:
        assert code.encode([0]).nbits == int(code.lengths([0])[0])
    for values, at, value in wrong:
        for call in (code.encode, code.lengths):
            with pytest.raises(ParameterError) as caught:
                call(values)
            allowed = f"an integer from {code.first} to 2**64 - 1"
            assert str(caught.value) == f"values[{at}]={value}: must be {allowed}"


# --- limits -------------------------------------------------------------------------------------


def test_codewords_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unary = entropy.parse("unary")
    for values in (
        [2**34],
        [LARGEST],
        [LARGEST, LARGEST],
        [1, 2**63, 2**63],
        np.full(5, 2**32),
        [2**33, 2**33],
    ):
        with pytest.raises(ParameterError, match="17179869184 bits"):
            unary.encode(values)
    with pytest.raises(ParameterError, match=f"that of {2**40} takes {2**40 + 1}"):
        unary.encode([3, 2**40])
    for spec in ("rice", "rice:k=10", "golomb:b=3"):
        with pytest.raises(ParameterError, match="max_bytes"):
            entropy.parse(spec).encode([LARGEST])
    assert unary.lengths([2**34, LARGEST - 1, LARGEST]).tolist() == [2**34 + 1, LARGEST, LARGEST]

    monkeypatch.setattr(universal, "Limits", lambda: gcodec.Limits(max_bytes=4))
    assert unary.encode([30, 0]).nbits == 32
    with pytest.raises(ParameterError, match="32 bits"):
        unary.encode([31, 0])
    assert entropy.parse("gamma").encode(np.ones(32, int)).to01() == "1" * 32
    with pytest.raises(ParameterError):
        entropy.parse("gamma").encode(np.ones(33, int))


@pytest.mark.parametrize("spec", [*SPECS, "rice:k=63", f"golomb:b={LARGEST}"])
def test_counts_beyond_the_bits_are_refused_early(spec: str) -> None:
    code = entropy.parse(spec)
    shortest = int(code.lengths([code.first])[0])
    bits = code.encode([code.first] * 9)
    assert bits.nbits == 9 * shortest
    assert code.decode(bits, 9)[1] == bits.nbits
    for count in (10, 2**40, 2**63, LARGEST):
        with pytest.raises(Truncated, match=f"cannot hold {count} words of {code}"):
            code.decode(bits, count)
    with pytest.raises(Truncated):
        code.decode(bits, 9, start=1)
    with pytest.raises(Truncated):
        code.decode(b"", 1)


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", None, 2**64])
def test_wrong_counts_are_refused(count: Any) -> None:
    with pytest.raises(ParameterError, match="count="):
        entropy.parse("gamma").decode(b"\xff", count)


@pytest.mark.parametrize("start", [-1, 9, 1.0, True, None])
def test_wrong_starts_are_refused(start: Any) -> None:
    with pytest.raises(ParameterError, match="start="):
        entropy.parse("gamma").decode(b"\xff", 1, start=start)


# --- sources of bits -----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_bits_of_any_kind(spec: str) -> None:
    code = entropy.parse(spec)
    expected = [7, 1, 30, 2]
    bits = code.encode(expected)
    text = bits.to01()
    wide = np.zeros((3, bits.data.size), np.uint8)
    wide[1] = bits.data
    same: list[Any] = [
        *(bits, text, " ".join(text), bits.tobytes(), bytearray(bits.tobytes()), bits.data),
        *(memoryview(bits.tobytes()), wide[1], array.array("B", bits.tobytes())),
        *(bitarray(text, endian=order) for order in ("big", "little")),
        frozenbitarray(text, endian="little"),
        bits.to_bitarray(),
    ]
    for source in same:
        values, end = code.decode(source, 4)
        assert values.dtype == np.uint64
        assert (values.tolist(), end, type(end)) == (expected, bits.nbits, int)


def test_all_bits_of_bytes_count() -> None:
    gamma = entropy.parse("gamma")
    assert gamma.decode(b"\xff\xff", 16)[1] == 16
    with pytest.raises(Truncated):
        gamma.decode(bitarray("1" * 15), 16)
    with pytest.raises(Truncated):
        gamma.decode(Bits.from01("1" * 15), 16)


@pytest.mark.parametrize("bits", [5, None, [1, 0], np.zeros(2), np.ones(8, bool), {}])
def test_wrong_bits_are_refused(bits: Any) -> None:
    with pytest.raises(TypeError, match="bits are a"):
        entropy.parse("gamma").decode(bits, 0)


def test_codes_can_alternate() -> None:
    """The codewords of one code may follow those of another."""
    parts = [(spec, [n + 1, 3, n * n + 2]) for n, spec in enumerate(SPECS)]
    text = "".join(entropy.parse(spec).encode(values).to01() for spec, values in parts)
    at = 0
    for spec, expected in parts:
        values, at = entropy.parse(spec).decode(Bits.from01(text), 3, start=at)
        assert values.tolist() == expected
    assert at == len(text)
