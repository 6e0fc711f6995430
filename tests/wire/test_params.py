"""Specs, mappings and constructors: valid and invalid values, and their canonical text."""

from __future__ import annotations

import math
import struct
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Codec, ParameterError
from gcodec import codecs as codec_classes
from gcodec.codec import register, registry
from gcodec.errors import Corrupt, Unsupported, suggestion
from gcodec.payload import Payload
from gcodec.wire.kinds import Choice, Float32, Integer, Kind, Sizes, binary32
from gcodec.wire.params import param
from gcodec.wire.primitives import Reader


class Bytes(NamedTuple):
    """Symbols of a codec of the tests."""

    data: np.ndarray


@pytest.mark.parametrize(
    ("spec", "canonical", "expression"),
    [
        ("raw", "raw", "Raw()"),
        ("raw:dtype=float32", "raw", "Raw()"),
        ("raw:dtype=bfloat16", "raw:dtype=bfloat16", "Raw(dtype='bfloat16')"),
        ("mxnet-2bit:threshold=0.5", "mxnet-2bit", "MXNet2Bit()"),
        ("mxnet-2bit:threshold=5e-1,server=no", "mxnet-2bit", "MXNet2Bit()"),
        (
            "mxnet-2bit:server=yes,threshold=.1",
            "mxnet-2bit:threshold=0.1,server=yes",
            "MXNet2Bit(threshold=0.1, server='yes')",
        ),
        ("mxnet-2bit:threshold=auto", "mxnet-2bit:threshold=auto", "MXNet2Bit(threshold='auto')"),
        ("mxnet-2bit:threshold=1", "mxnet-2bit:threshold=1.0", "MXNet2Bit(threshold=1.0)"),
        (
            "mxnet-2bit:threshold=inf",
            "mxnet-2bit:threshold=inf",
            "MXNet2Bit(threshold=float('inf'))",
        ),
        (
            "mxnet-2bit:threshold=0.1000000000001",
            "mxnet-2bit:threshold=0.1",
            "MXNet2Bit(threshold=0.1)",
        ),
        ("mxnet-1bit:threshold=-0.0", "mxnet-1bit:threshold=-0.0", "MXNet1Bit(threshold=-0.0)"),
        (
            "mxnet-1bit:threshold=nan",
            "mxnet-1bit:threshold=nan",
            "MXNet1Bit(threshold=float('nan'))",
        ),
        (
            "mxnet-1bit:threshold=-1e99",
            "mxnet-1bit:threshold=-inf",
            "MXNet1Bit(threshold=float('-inf'))",
        ),
    ],
)
def test_canonical_forms(spec: str, canonical: str, expression: str) -> None:
    codec = gcodec.parse(spec)
    assert str(codec) == canonical
    assert repr(codec) == expression
    assert gcodec.parse(canonical) == codec
    assert f"{codec}" == canonical


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("", "codec=''"),
        ("rwa", "one of raw"),
        ("RAW", "one of raw"),
        (" raw", "one of raw"),
        ("raw:", "name:key=value"),
        ("raw:dtype", "name:key=value"),
        ("raw:dtype=", "dtype=''"),
        ("raw:dtype=float32,", "name:key=value"),
        ("raw:,dtype=float32", "name:key=value"),
        ("raw:dtype=float32,dtype=float32", "name:key=value"),
        ("raw:dtype=int8", "one of float32, float16, bfloat16"),
        ("raw:Dtype=float32", "parameters dtype"),
        ("raw:threshold=1", "parameters dtype"),
        ("mxnet-2bit:threshold=", "threshold=''"),
        ("mxnet-2bit:threshold=half", "threshold='half'"),
        ("mxnet-2bit:threshold=0", "above zero"),
        ("mxnet-2bit:threshold=-0.5", "above zero"),
        ("mxnet-2bit:threshold=nan", "above zero"),
        ("mxnet-2bit:threshold=-inf", "above zero"),
        ("mxnet-2bit:threshold=1.1e-38", "above zero"),
        ("mxnet-2bit:threshold=1e-45", "above zero"),
        ("mxnet-2bit:threshold=1e39", "above zero"),
        ("mxnet-2bit:server=maybe", "one of no, yes"),
        ("mxnet-2bit:server=yes,threshold=4e-7", "above 5e-7"),
        ("mxnet-1bit:threshold=auto", "threshold='auto'"),
        ("topk:threshold=0", "threshold=0.0: must be a number above 0, finite$"),
        ("topk:k=3,threshold=-0.0", "threshold=0.0: must be a number above 0, finite$"),
        ("topk:threshold=1e-50", "threshold=0.0: must be a number above 0, finite$"),
        ("topk:threshold=-1", "threshold=-1.0: must be a number above 0, finite$"),
        *(
            (f"{name}:bits={value}", f"bits={value}: must be a number above 0, up to 32$")
            for name in ("ecsq", "lowrank")
            for value in ("0.0", "33.0")
        ),
        ("ecsq:step=inf", "step=inf: must be a finite number from 0 on or auto$"),
        ("mxnet-1bit:server=yes", "parameters threshold"),
    ],
)
def test_invalid_specs_are_refused(spec: str, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        gcodec.parse(spec)
    with pytest.raises(ParameterError, match=match):
        gcodec.encode(np.ones(3, np.float32), spec)
    with pytest.raises(ParameterError, match=match):
        gcodec.Feedback(spec)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        3,
        b"raw",
        ["raw"],
        {},
        {"dtype": "float32"},
        {"name": None},
        {"name": "raw", "level": 3},
        {"name": "raw", "dtype": 1},
        {"name": "mxnet-2bit", "threshold": "0.5"},
        {"name": "mxnet-2bit", "threshold": True},
        {"name": "mxnet-2bit", "threshold": None},
        {"name": "mxnet-2bit", "threshold": [0.5]},
        {"name": "mxnet-2bit", "server": True},
        gcodec.codecs()["raw"],
    ],
    ids=repr,
)
def test_objects_that_are_not_specs_are_refused(spec: Any) -> None:
    with pytest.raises(ParameterError):
        gcodec.parse(spec)


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), Fraction(10**400), np.complex64(1), np.complex128(0.5), np.bool_(True)],
    ids=["int", "negative", "fraction", "complex64", "complex128", "bool"],
)
def test_invalid_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="threshold"):
        gcodec.parse({"name": "mxnet-2bit", "threshold": value})


@pytest.mark.parametrize(
    "value", [1, np.float32(1), np.float64(1), np.int8(1), np.float16(1), Fraction(1)], ids=repr
)
def test_equal_numbers_of_any_type_are_accepted(value: Any) -> None:
    codec = gcodec.parse({"name": "mxnet-2bit", "threshold": value})
    assert repr(codec) == "MXNet2Bit(threshold=1.0)"
    assert type(codec.threshold) is float  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "unset"), [("topk", "threshold"), ("ecsq", "bits"), ("lowrank", "bits")]
)
def test_unset_numbers_are_0_in_codecs_and_messages_only(spec: str, unset: str) -> None:
    codec = gcodec.parse(spec)
    assert getattr(codec, unset) == 0
    for zero in (0, -0.0):
        assert str(type(codec)(**{unset: zero})) == spec
        assert type(codec).from_mapping({unset: zero}) == codec  # as from a header
        with pytest.raises(ParameterError, match=rf"^{unset}=0.0: must be a number above 0, "):
            gcodec.parse({"name": spec, unset: zero})


def test_mappings_are_not_changed() -> None:
    spec = {"name": "mxnet-2bit", "threshold": 0.25}
    assert gcodec.parse(spec) == gcodec.parse("mxnet-2bit:threshold=0.25")
    assert spec == {"name": "mxnet-2bit", "threshold": 0.25}


def test_error_messages_are_short() -> None:
    with pytest.raises(ParameterError) as caught:
        gcodec.parse("x" * 100_000)
    assert len(str(caught.value)) < 300
    with pytest.raises(ParameterError) as caught:
        gcodec.parse("raw:dtype=" + "x" * 100_000)
    assert len(str(caught.value)) < 300
    with pytest.raises(ParameterError) as caught:
        gcodec.parse("raw:" + "x" * 100_000 + "=1")
    assert len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_arbitrary_text_is_parsed_or_refused(text: str) -> None:
    for spec in (text, f"raw:{text}", f"mxnet-2bit:threshold={text}", f"mxnet-1bit:{text}=0"):
        try:
            codec = gcodec.parse(spec)
        except ParameterError:
            continue
        assert gcodec.parse(str(codec)) == codec


# --- numbers of 32 bits -------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_any_float32_parameter_round_trips(bits: int) -> None:
    value = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
    codec = gcodec.parse({"name": "mxnet-1bit", "threshold": value})
    number = codec.threshold  # type: ignore[attr-defined]
    assert math.isnan(number) if math.isnan(value) else np.float32(number) == np.float32(value)
    assert math.copysign(1, number) == math.copysign(1, value) or math.isnan(value)
    assert gcodec.parse(str(codec)) == codec
    assert eval(repr(codec), {"MXNet1Bit": type(codec)}) == codec
    again = type(codec).read_parameters(memoryview(codec.write_parameters()))
    assert repr(again.get("threshold", 0.0)) == repr(number)


@given(st.floats())
def test_binary32_is_idempotent(value: float) -> None:
    once = binary32(value)
    assert repr(binary32(once)) == repr(once)
    if math.isfinite(once):
        assert np.float32(once) == np.float32(value)
        assert repr(once) == str(np.float32(value)) or float(str(np.float32(value))) == once


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            Integer(2, 9, sent=("a", "b")),
            {"a": b"\0", "b": b"\1", 2: b"\4", 9: b"\x0b"},
            {1: b"\3", 10: b"\x0c", "c": None, 2.0: None, None: None},
        ),
        (
            Sizes(3, 200, 1000),
            {(1,): b"\1\1", (200,): b"\1\xc8\1", (10, 10, 10): b"\3" + 3 * b"\n"},
            {
                **{(): b"\0", (1, 1, 1, 1): b"\4" + 4 * b"\1", (0,): b"\1\0"},
                **{(1, 0): b"\2\1\0", (201,): b"\1\xc9\1", (7, 143): b"\2\7\x8f\1"},
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bounds_of_kinds(kind: Kind, good: dict[Any, bytes], bad: dict[Any, bytes | None]) -> None:
    """Constructors and readers accept the same values."""
    for value, data in good.items():
        assert kind.check("x", value) == kind.parse("x", kind.text(value)) == value
        assert kind.write(value) == data
        assert kind.read(Reader(data)) == value
    for value, field in bad.items():
        with pytest.raises(ParameterError, match=r"^x="):
            kind.check("x", value)
        if field is not None:
            with pytest.raises(Corrupt, match="must be "):
                kind.read(Reader(field))


def test_numbers_are_tested_before_and_after_rounding() -> None:
    kind = Float32("a number below 1", lambda number: number < 1)
    assert kind.check("x", 0.5) == 0.5
    for value in (1.0, 1 - 1e-12):
        with pytest.raises(ParameterError, match="must be a number below 1"):
            kind.check("x", value)


def test_encoder_and_decoder_share_the_binary32_number() -> None:
    codec = gcodec.parse("mxnet-2bit:threshold=0.1")
    assert codec.threshold == 0.1  # type: ignore[attr-defined]
    scalars = codec.encode(np.ones(3, np.float32)).scalars
    assert codec.write_scalars(scalars) == struct.pack("<f", 0.1)
    assert codec.read_scalars(memoryview(codec.write_scalars(scalars))) == {"threshold": 0.1}


@pytest.mark.parametrize("name", ["sign", "terngrad"])
@pytest.mark.parametrize("scale", [float("inf"), -1.0])
def test_scales_of_bare_messages_are_checked(name: str, scale: float) -> None:
    with pytest.raises(ParameterError, match=r"scale=.*: must be a finite number from 0 on$"):
        gcodec.parse(name).decode(b"\0", 4, scale=scale)


@pytest.mark.parametrize("scalars", [{}, {"scale": 1.0, "other": 2}, {"other": 2}])
def test_messages_have_exactly_the_declared_scalars(scalars: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="must be the declared ones: scale"):
        gcodec.parse("sign").write_scalars(scalars)
    with pytest.raises(ParameterError, match="must be the declared ones: none"):
        gcodec.parse("raw").write_scalars({"scale": 1.0})


def test_scalars_missing_in_earlier_messages_have_defaults() -> None:
    codec, step = gcodec.parse("ecsq:rounding=stochastic"), struct.pack("<f", 1)
    for transform, written in (("none", b""), ("dct", b"\1")):
        scalars = {"step": 1.0, "transform": transform}
        assert codec.write_scalars(scalars) == step + written
        assert codec.read_scalars(memoryview(step + written)) == scalars
    assert codec.read_scalars(memoryview(step + b"\0"))["transform"] == "none"
    for wrong, error in ((b"", gcodec.Corrupt), (step + b"\2", gcodec.Unsupported)):
        with pytest.raises(error):
            codec.read_scalars(memoryview(wrong))


@given(gs.codecs())
def test_header_fields_round_trip(codec: Codec) -> None:
    payload = codec.encode(np.float32([0.5, -3, 2]))
    sent, cls = payload.codec, type(codec)
    assert not sent.unresolved()
    parameters, scalars = sent.write_parameters(), sent.write_scalars(payload.scalars)
    read = sent.read_scalars(memoryview(scalars))
    assert read == payload.scalars
    assert list(read) == [field.name for field in sent.message_fields()]
    decoded = cls.from_mapping(cls.read_parameters(memoryview(parameters)))
    assert decoded.of_message(read) == sent
    assert len(parameters) + len(scalars) <= codec.fields_nbytes()
    assert cls().write_parameters() == b""
    assert cls.from_mapping(gs.parameters_of(codec)) == codec


# --- declarations -------------------------------------------------------------------------------


def test_registry() -> None:
    codecs = gcodec.codecs()
    assert [(name, cls.name, cls.id) for name, cls in codecs.items()][:7] == [
        ("raw", "raw", 1),
        ("qsgd", "qsgd", 2),
        ("mxnet-2bit", "mxnet-2bit", 3),
        ("mxnet-1bit", "mxnet-1bit", 4),
        ("terngrad", "terngrad", 5),
        ("minmax", "minmax", 6),
        ("sign", "sign", 7),
    ]
    codecs.clear()
    assert gcodec.codecs()
    for cls in gcodec.codecs().values():
        assert issubclass(cls, Codec)
        assert cls.__doc__
        for declared in (*cls.declared(), *cls().scalar_fields()):
            assert declared.doc
            assert declared.kind.nbytes
            assert declared.kind.allowed
        for declared in cls.declared():
            assert declared.kind.check(declared.name, declared.default) == declared.default


def test_classes_are_attributes_by_which_reprs_are_python() -> None:
    classes = [*gcodec.codecs().values(), type(gcodec.parse("patch"))]
    names = {cls.__name__: getattr(codec_classes, cls.__name__) for cls in classes}
    assert list(names.values()) == classes
    for codec in (*(cls() for cls in classes), gcodec.parse("topk:k=3,value=int8")):
        assert eval(repr(codec), names) == codec
    with pytest.raises(AttributeError, match="has no attribute 'Unknown'"):
        _ = codec_classes.Unknown


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1, "new"),
        (250, "raw"),
        (0, "new"),
        (100, "new"),
        (191, "new"),
        (256, "new"),
        ("200", "new"),
    ],
)
def test_ids_and_names_are_unique(number: Any, name: str) -> None:
    with pytest.raises(ParameterError, match="id"):

        @register(id=number, name=name)
        class Other(Codec):
            pass

    assert "new" not in gcodec.codecs()


@pytest.mark.parametrize("name", ["", "auto", "a:b", "a,b", "a=b", "a b", "Mine", "-a", "ä"])
def test_names_that_no_spec_can_have_are_refused(name: str) -> None:
    with pytest.raises(ParameterError, match=r"^name="):
        register(id=200, name=name)(type("Other", (Codec,), {}))
    assert name not in gcodec.codecs()


@pytest.mark.parametrize(
    ("data", "nbits", "text"),
    [
        (np.zeros(5, np.uint8), 32, "5 elements of uint8 for 32 bits"),
        (np.zeros(4, np.uint8), 33, "4 elements of uint8 for 33 bits"),
        (np.zeros((2, 2), np.uint8), 33, "4 elements of uint8 for 33 bits"),
        (np.zeros(4, np.float32), 32, "4 elements of float32 for 32 bits"),
    ],
)
def test_bytes_of_a_user_defined_codec_fit_its_bits(
    data: np.ndarray, nbits: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcodec.codecs()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @register(id=200, name="mine")
    class Mine(Codec):
        def _quantize(self, values: np.ndarray, seed: int, prior: Any) -> tuple[()]:
            return ()

        def _pack(self, symbols: tuple[()]) -> Payload:
            return Payload(self, {}, data, nbits)

    x = np.ones(4, np.float32)
    for call in (
        lambda: gcodec.encode(x, "mine"),
        lambda: Mine().encode(x),
        lambda: Mine().pack(()),
    ):
        with pytest.raises(ParameterError, match=f"^payload.data: has {text}: must have . of"):
            call()


def test_a_user_defined_codec_cannot_write_to_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    gcodec.codecs()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @register(id=200, name="mine")
    class Mine(Codec):
        def _quantize(self, values: np.ndarray, seed: int, prior: Any) -> tuple[()]:
            values /= 2
            return ()

    x, residual = np.ones(4, np.float32), np.full(4, 3, np.float32)
    for call in (
        lambda: gcodec.encode(x, "mine"),
        lambda: Mine().quantize(x),
        lambda: Mine().quantize_residual(x, residual),
        lambda: gcodec.Feedback("mine").compress("w", x),
    ):
        with pytest.raises(ValueError, match="read-only"):
            call()
    assert x.tolist() == [1] * 4
    assert residual.tolist() == [3] * 4


def test_a_user_defined_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    gcodec.codecs()  # no module is imported while the registry is another one
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @register(id=200, name="mine")
    class Mine(Codec):
        """Private."""

        mode: str = param(Choice("a", "b"), "a", "what")
        level: float = param(Float32("a number above 1", lambda v: v > 1), 2.0, "how much")

    codec = gcodec.parse("mine:level=3,mode=b")
    assert str(codec) == "mine:mode=b,level=3.0"
    assert codec.write_parameters() == b"\1" + struct.pack("<f", 3)
    assert gcodec.parse("mine:mode=b").write_parameters() == b"\1"
    assert gcodec.parse("mine:level=3").write_parameters() == b"\0" + struct.pack("<f", 3)
    for data, values in (
        (b"", {}),
        (b"\1", {"mode": "b"}),
        (b"\0" + struct.pack("<f", 3), {"mode": "a", "level": 3.0}),
    ):
        assert Mine.read_parameters(memoryview(data)) == values
    with pytest.raises(Unsupported, match="mode: choice 2"):
        Mine.read_parameters(memoryview(b"\2"))
    with pytest.raises(Corrupt, match=r"level: .*above 1"):
        Mine.read_parameters(memoryview(b"\0" + struct.pack("<f", 1)))
    with pytest.raises(Corrupt, match=r"level: .*too few"):
        Mine.read_parameters(memoryview(b"\0\0\0"))
    with pytest.raises(Unsupported):
        Mine.read_parameters(memoryview(bytes([0]) + struct.pack("<f", 3) + b"\0"))
    with pytest.raises(NotImplementedError, match=r"^Mine must define the method _quantize$"):
        codec.encode(np.ones(1, np.float32))
    for call, method in (
        (lambda: codec.max_encoded_nbytes(1), "max_payload_nbits"),
        (lambda: codec._pack(()), "_pack"),
        (lambda: codec._unpack(None, 1), "_unpack"),
        (lambda: codec._dequantize((), np.ones(1, np.float32)), "_dequantize"),
    ):
        with pytest.raises(NotImplementedError, match=f" must define the method {method}$"):
            call()
    with pytest.raises(
        TypeError, match=r"^NoCodec is no subclass of gcodec\.Codec: must be a codec$"
    ):
        gcodec.register(id=255, name="none")(type("NoCodec", (), {}))
    assert not codec.unbiased
    assert codec.contraction(3) is None
    assert codec.variance(3) is None
    assert codec.fields_nbytes() == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"k": 3, "__annotations__": {"k": int}}, "k: must be declared by gcodec.codec.param"),
        (
            {"id": param(Integer(1, 5), 2, "a"), "__annotations__": {"id": int}},
            "id: must have another name",
        ),
        (
            {"encode": param(Integer(1, 5), 2, "a"), "__annotations__": {"encode": int}},
            "encode: must have another name",
        ),
        ({"symbols_type": None}, "symbols_type is of type NoneType: must be a class"),
        ({"symbols_dtypes": {"x": ("int8",)}}, r"symbols_dtypes\['x'\]: must be for a field of"),
        (
            {
                "symbols_type": NamedTuple("Levels", [("x", Any)]),
                "symbols_dtypes": {"x": "int8"},
            },
            r"symbols_dtypes\['x'\]='int8': must be a sequence of dtypes",
        ),
    ],
)
def test_declarations_are_checked_at_registration(body: dict[str, Any], message: str) -> None:
    known = dict(registry._registry), dict(registry._names)
    with pytest.raises(TypeError, match=rf"^Mistaken\.{message}"):
        register(id=201, name="mistaken")(type("Mistaken", (Codec,), body))
    assert (registry._registry, registry._names) == known


@pytest.mark.parametrize("kind", [int, "int", None, Integer])
def test_kinds_of_parameters_are_checked(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^kind is \w+: must be a kind such as .*Integer\(1, 8\)"):
        param(kind, 1, "a number")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"_pack": lambda self, symbols: None}, r"_pack\(\) returns <class 'NoneType'>: must"),
        ({"_pack": lambda self, symbols: b"abc"}, r"_pack\(\) returns <class 'bytes'>: must"),
        (
            {"_pack": lambda self, symbols: Payload(self, {}, cast("Any", b"abc"), 24)},
            r"_pack\(\) returns data of <class 'bytes'>: must be a uint8 array",
        ),
        (
            {"_quantize": lambda self, values, seed, prior: None},
            r"_quantize\(\)='NoneType': must be Bytes, as mistaken makes them",
        ),
        (
            {"_quantize": lambda self, values, seed, prior: Bytes(values)},
            r"_quantize\(\)\.data: must be a C-contiguous vector of uint8, as mistaken makes it",
        ),
    ],
)
def test_errors_name_the_mistaken_method_of_a_codec(
    monkeypatch: pytest.MonkeyPatch, mistake: dict[str, Any], message: str
) -> None:
    class Right(Codec):
        symbols_type = Bytes
        symbols_dtypes: ClassVar[Any] = {"data": ("uint8",)}

        def _quantize(self, values: Any, seed: int, prior: Any) -> Bytes:
            return Bytes(np.uint8(values))

        def _dequantize(self, symbols: Any, out: np.ndarray) -> None:
            out[:] = 0

        def _pack(self, symbols: Bytes) -> Payload:
            return Payload(self, {}, symbols.data, 8 * symbols.data.size)

    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_names", dict(registry._names))
    x = np.arange(3, dtype=np.float32)
    right = register(id=202, name="right")(type("Right", (Right,), {}))()
    wrong = register(id=201, name="mistaken")(type("Mistaken", (Right,), mistake))()
    calls: list[Callable[[Codec], object]] = [
        lambda codec: gcodec.encode(x, codec),
        lambda codec: codec.encode(x),
        lambda codec: gcodec.Feedback(codec).compress("w", x),
    ]
    if "_pack" in mistake:
        calls.append(lambda codec: codec.pack(codec.quantize(x)))
    for call in calls:
        call(right)
        with pytest.raises((TypeError, ParameterError), match=f"^Mistaken.{message}"):
            call(wrong)


def test_threads_lose_no_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    gcodec.codecs()  # no module is imported while the registry is another one
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_names", dict(registry._names))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for trial in range(10):
            codecs = [registry.Provided(192 + k, f"{trial}-{k}", "nowhere") for k in range(8)]
            start = threading.Barrier(len(codecs))

            def provide(codec: registry.Provided, start: threading.Barrier = start) -> None:
                start.wait()
                registry.provide([codec])

            threads = [threading.Thread(target=provide, args=(codec,)) for codec in codecs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(codec.name in registry._registry for codec in codecs)
    finally:
        sys.setswitchinterval(interval)


def test_codecs_are_frozen_and_hashable() -> None:
    codec = gcodec.parse("mxnet-2bit")
    with pytest.raises(AttributeError):
        codec.threshold = 3  # type: ignore[attr-defined]
    assert {codec, gcodec.parse("mxnet-2bit:threshold=0.5"), gcodec.parse("raw")} == {
        codec,
        gcodec.parse("raw"),
    }
    assert codec != gcodec.parse("mxnet-1bit:threshold=0.5")


def test_messages_shorten_long_values() -> None:
    for size, shown in ((78, repr("x" * 78)), (79, "'" + "x" * 76 + "...")):
        assert str(ParameterError.of("n", "x" * size, "short")) == f"n={shown}: must be short"
    assert str(ParameterError.of("n" * 81, 1, "2")) == f"{'n' * 77}...=1: must be 2"
    assert str(ParameterError.of("n", 10**5000, "small")) == "n=…: must be small"


def test_only_short_words_get_a_suggestion() -> None:
    assert suggestion("x" * 80, ["x" * 79]) == f"; did you mean {'x' * 79}?"
    for word, words in (("x" * 81, ["x" * 80]), (5, ["x"]), ("y", ["x"])):
        assert suggestion(word, words) == ""
