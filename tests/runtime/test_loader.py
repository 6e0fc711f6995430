"""Calls of compiled kernels: checks of arguments, conversions, results and reference counts."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcodec.errors import Unsupported
from gcodec.runtime import kernel_cache, loader
from gcodec.runtime.jit import Kernel, calling, checked, grouped, kernel, subroutine

INTEGERS = [
    *(np.int8, np.int16, np.int32, np.int64, np.intc, np.int_, np.longlong, np.intp),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.uintc, np.ulonglong, np.uintp),
]
FLOATS = [np.float16, np.float32, np.float64, np.longdouble]
FAILURE = IndexError if checked() else RuntimeError  # of a kernel that fails
ARRAYS = ["uint8", "uint16", "uint32", "uint64", "int32", "int64", "float32", "float64"]


@kernel("int64, uint64, float64, boolean")
def numbers(a, b, c, d):
    return a, b, c, d


@kernel("uint8, uint16, uint32, int32, float32")
def narrow(a, b, c, d, e):
    return a, b, c, d, e


@kernel("in float32[], out int64[]")
def sized(x, out):
    out[0] = x.size


@kernel("in float32[], out int64[], int64")
def sized_by(x, out, a):
    out[0] = x.size + a


@kernel("int64")
def none(x):
    return


@kernel("float32")
def third(x):
    return x / np.float32(3)


@kernel("int64")
def positive(x):
    return x > 0


@kernel("int64, float32")
def mixed(x, y):
    unsigned, narrow = np.uint64(x), np.int32(x)
    return unsigned, narrow, np.uint8(x), y, np.float64(y), x > 0, np.int64(x), np.uint32(x)


@kernel("in uint8[], int64")
def byte_at(x, i):
    return x[i]


@kernel("int64")
def refusing(x):
    if x < 0:
        raise ValueError
    return x


@kernel("int64")
def refuse(x):
    if x < 0:
        raise ValueError


call_refuse = calling("int64")
call_part = calling("in float32[], out int64[]")


@kernel("uint64, int64")
def doubled(address, x):
    call_refuse(address, x)
    return 2 * x


@kernel("uint64, in float32[], out int64[]")
def apart(address, x, out):
    call_part(address, x[1:], out)
    return out[0]


@subroutine
def total(pair):
    x, factor = pair
    return factor * (x[0] + x[1])


@kernel("int64, (in float32[], float32), (out float32[], int64)")
def grouping(a, pair, target):
    out, b = target
    out[0] = total(pair)
    return a + b


@kernel("int64, in float32[], out float32[]")
def passing(a, x, out):
    return grouping(a, (x[1:], np.float32(a)), (out, 2 * a))


def adder(dtype: str) -> Kernel:
    """Return a kernel that adds 1 to the first element of an array."""

    @kernel(f"in {dtype}[], out {dtype}[]", variant=dtype)
    def add(x, out):
        out[0] = x[0] + 1

    return add


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: np.dtype(kind).char)
def test_integers_of_all_kinds(kind: Callable[..., Any]) -> None:
    limits = np.iinfo(kind)
    for value in {3, limits.min, limits.max}:
        scalar = kind(value)
        assert numbers(0, 0, scalar, scalar) == (0, 0, float(value), value != 0)
        if -(2**63) <= value < 2**63:
            assert numbers(scalar, 0, 0.0, False)[0] == value
        else:
            with pytest.raises(OverflowError):
                numbers(scalar, 0, 0.0, False)
        if value >= 0:
            assert numbers(0, scalar, 0.0, False)[1] == value
        else:
            with pytest.raises(OverflowError):
                numbers(0, scalar, 0.0, False)


@pytest.mark.parametrize("kind", [float, *FLOATS])
def test_floats_of_all_kinds(kind: Callable[..., Any]) -> None:
    for value in (0.0, -0.5, np.inf):
        assert numbers(0, 0, kind(value), kind(value)) == (0, 0, value, value != 0)
    assert np.isnan(numbers(0, 0, kind(np.nan), False)[2])
    for arguments in ((kind(1), 0, 0.0, False), (0, kind(1), 0.0, False)):
        with pytest.raises(TypeError):
            numbers(*arguments)


def test_limits_of_python_integers() -> None:
    for value in (-(2**63), -1, 0, 2**63 - 1):
        assert numbers(value, 0, 0.0, False)[0] == value
    for value in (0, 2**63, 2**64 - 1):
        assert numbers(0, value, 0.0, False)[1] == value
    for arguments in ((2**63, 0), (-(2**63) - 1, 0), (0, -1), (0, 2**64), (0, -(2**63))):
        with pytest.raises(OverflowError):
            numbers(*arguments, 0.0, False)
    with pytest.raises(OverflowError):
        numbers(0, 0, 10**400, False)


def test_booleans() -> None:
    assert numbers(True, True, True, True) == (1, 1, 1.0, True)
    for value in (False, 0, np.False_, 0.0, None, ""):
        assert numbers(0, 0, 0.0, value)[3] is False
    for value in (True, -1, np.True_, 256, 1 << 70):
        assert numbers(0, 0, 0.0, value)[3] is True
    with pytest.raises(ValueError, match="ambiguous"):
        numbers(0, 0, 0.0, np.ones(2))


@pytest.mark.parametrize("value", ["3", b"3", None, 1j, [3], np.datetime64(3, "s"), np.ones(2)])
def test_other_objects_are_no_numbers(value: object) -> None:
    for place in range(3):
        arguments: list[Any] = [0, 0, 0.0, False]
        arguments[place] = value
        with pytest.raises(TypeError):
            numbers(*arguments)


class Index:
    """An integer whose conversion calls a function."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __index__(self) -> int:
        return int(self.call())


def test_integers_of_other_classes() -> None:
    assert numbers(Index(lambda: -3), Index(lambda: 4), 0.0, True) == (-3, 4, 0.0, True)

    def fail() -> None:
        raise KeyError("no number")

    for arguments in ((Index(fail), 0), (0, Index(fail))):
        with pytest.raises(KeyError, match="no number"):
            numbers(*arguments, 0.0, True)


def test_the_first_error_is_reported() -> None:
    """No Python code runs while an error is pending."""
    called: list[int] = []
    with pytest.raises(OverflowError):
        numbers(0, -1, Index(lambda: called.append(1) or 5), True)
    with pytest.raises(TypeError, match="float"):
        numbers(1.5, -1, "no number", True)
    assert not called


def test_narrow_numbers() -> None:
    largest = 255, 2**16 - 1, 2**32 - 1, 2**31 - 1, 0.5
    assert narrow(*largest) == largest
    assert narrow(0, 0, 0, -(2**31), 1 / 3) == (0, 0, 0, -(2**31), float(np.float32(1 / 3)))


@pytest.mark.parametrize("passed", [0, 1, 3, 5, 70])
def test_numbers_of_arguments(passed: int) -> None:
    with pytest.raises(TypeError):
        numbers(*[0] * passed)
    with pytest.raises(TypeError):
        numbers.run(*[0] * passed)


def test_arguments_have_no_names() -> None:
    with pytest.raises(TypeError, match="keyword"):
        numbers.run(0, 0, 0.0, d=True)


# --- arrays -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARRAYS)
def test_dtypes_of_arrays(name: str) -> None:
    """An array fits if NumPy's dtypes are equal, such as C's long and long long."""
    add = adder(name)
    out = np.zeros(1, name)
    for code in "?bBhHiIlLqQefdgFDGmMSUVO":
        dtype = np.dtype("M8[s]" if code == "M" else "m8[s]" if code == "m" else code)
        x = np.ones(2, dtype)
        if dtype == np.dtype(name):
            out[0] = 0
            add(x, out)
            assert out[0] == 2
            add(np.ones(1, name), x)
            assert x[0] == 2
        else:
            for arguments in ((x, out), (out, x)):
                with pytest.raises(TypeError, match=f"add {name}"):
                    add(*arguments)
    if out.itemsize > 1:
        swapped = np.ones(2, np.dtype(name).newbyteorder())
        for arguments in ((swapped, out), (out, swapped)):
            with pytest.raises(TypeError, match=f"add {name}"):
                add(*arguments)


def test_both_dtypes_of_64_bits() -> None:
    for code in "lq":
        out = np.zeros(1, code)
        if out.itemsize == 8:
            sized(np.ones(3, np.float32), out)
            assert out[0] == 3


def test_dtypes_of_other_packages() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError):
        sized(np.ones(3, ml_dtypes.bfloat16), np.zeros(1, np.int64))


def test_shapes_and_strides_of_arrays() -> None:
    x, out = np.ones((4, 6), np.float32), np.zeros(1, np.int64)
    flat = x.reshape(-1)
    for wrong in (x, x[:1], x[:, :1], flat[::2], flat[::-1], x[:, 0], x[0, 0:1].reshape(())):
        with pytest.raises(TypeError, match="sized"):
            sized(wrong, out)
    with pytest.raises(TypeError, match="sized"):
        sized(np.broadcast_to(np.float32(1), 3), out)
    for right in (flat, flat[3:7], flat[:0], flat[5::30], x[2]):
        sized(right, out)
        assert out[0] == right.size


def test_read_only_arrays_are_not_written() -> None:
    x, out = np.ones(3, np.float32), np.zeros(1, np.int64)
    x.flags.writeable = False
    sized(x, out)
    assert out[0] == 3
    out.flags.writeable = False
    with pytest.raises(TypeError, match="sized"):
        sized(x[:1], out)
    assert out[0] == 3
    with pytest.raises(TypeError, match="sized"):
        sized(x, np.frombuffer(bytes(8), np.int64))


@pytest.mark.parametrize(
    "value",
    [None, 0, 1.0, "x", b"12345678", [1.0], (), np.float32(1), memoryview(b"1234"), np.ndarray],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_no_arrays(value: object) -> None:
    with pytest.raises(TypeError, match="sized"):
        sized(value, np.zeros(1, np.int64))
    with pytest.raises(TypeError, match="sized"):
        sized(np.ones(1, np.float32), value)


def test_ctypes_arrays_are_no_arrays() -> None:
    with pytest.raises(TypeError):
        sized((ctypes.c_float * 3)(), np.zeros(1, np.int64))


def test_subclasses_of_arrays(tmp_path: Path) -> None:
    class Own(np.ndarray):
        pass

    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=5)
    out = np.memmap(tmp_path / "out", np.int64, "w+", shape=1)
    sized(mapped, out)
    assert out[0] == 5
    sized(np.ones(4, np.float32).view(Own), out)
    assert out[0] == 4
    read_only = np.memmap(tmp_path / "out", np.int64, "r")
    with pytest.raises(TypeError, match="sized"):
        sized(mapped, read_only)


def test_arrays_are_read_after_the_conversion_of_numbers() -> None:
    """A conversion may run Python code, which could replace the memory of an array."""
    x, out = np.ones(3, np.float32), np.zeros(1, np.int64)

    def resize() -> int:
        x.resize(100_000, refcheck=False)
        return 0

    sized_by(x, out, Index(resize))
    assert out[0] == 100_000


def test_another_layout_of_arrays_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    loader._check_layout()
    for name in ("DATA", "NDIM", "DTYPE", "FLAGS"):
        with monkeypatch.context() as patch:
            patch.setattr(loader, name, getattr(loader, name) + 8)
            if name == "DATA":
                patch.setattr(loader, name, loader.SHAPE)
            with pytest.raises(Unsupported, match="NumPy"):
                loader._check_layout()


# --- results ------------------------------------------------------------------------------------


def test_no_result() -> None:
    assert none(3) is None


def test_float_results() -> None:
    result = third(1.0)
    assert type(result) is float
    assert result == float(np.float32(1) / np.float32(3)) != 1 / 3


def test_boolean_results() -> None:
    assert positive(1) is True
    assert positive(0) is False


@pytest.mark.parametrize("x", [0, 5, -5, 2**40 - 3, -(2**63), 2**63 - 1])
def test_results_of_mixed_types(x: int) -> None:
    y = 1 / 3
    y32 = float(np.float32(y))
    int32 = int(np.array(x).astype(np.int32))
    expected = (x % 2**64, int32, x % 256, y32, y32, x > 0, x, x % 2**32)
    result = mixed(x, y)
    assert result == expected
    assert [type(value) for value in result] == [type(value) for value in expected]


# --- failures -----------------------------------------------------------------------------------


def test_a_failing_kernel_names_itself() -> None:
    assert refusing(3) == 3
    with pytest.raises(FAILURE) as caught:
        refusing(-1)
    assert str(caught.value) == refusing.name == "test_loader.refusing"


def test_checked_kernels_check_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_CHECKED", "1")
    careful = Kernel(byte_at.function, byte_at.signature, "checked")
    x = np.arange(3, dtype=np.uint8)
    assert [careful(x, i) for i in range(3)] == [0, 1, 2]
    for i in (3, -4, 2**62):
        with pytest.raises(IndexError) as caught:
            careful(x, i)
        assert str(caught.value) == careful.name


def test_threads_call_a_kernel() -> None:
    wrong: list[int] = []

    def call(first: int) -> None:
        out = np.zeros(1, np.int64)
        for k in range(first, first + 3000):
            sized(np.empty(k % 50, np.float32), out)
            if out[0] != k % 50 or numbers(k, k, k, True) != (k, k, k, True):
                wrong.append(k)

    threads = [threading.Thread(target=call, args=(first,)) for first in (0, 17, 31)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- reference counts ---------------------------------------------------------------------------


class Own:
    """An object without a number."""


def calls() -> list[tuple[Kernel, tuple[Any, ...]]]:
    """Return calls that succeed and calls that fail, for each kind of argument and result."""
    x, out = np.ones(3000, np.float32), np.zeros(1, np.int64)
    large = 2**62 + 12345
    frozen = x[:5].view()
    frozen.flags.writeable = False
    return [
        (numbers, (large, large, 1e300, True)),
        (numbers, (np.int64(large), np.uint64(large), np.float32(2.5), np.True_)),
        (numbers, (Index(lambda: large), Index(lambda: large), 0.5, Own())),
        (numbers, (2**80, 0, 0.0, True)),
        (numbers, (0, -(2**80), 0.0, True)),
        (numbers, (0, Own(), 0.0, True)),
        (numbers, (0, 0, Own(), True)),
        (numbers, (large,)),
        (sized, (x, out)),
        (sized, (frozen, out)),
        (sized, (x[::2], out)),
        (sized, (x, frozen)),
        (sized, (Own(), out)),
        (sized, (x.astype(">f4"), out)),
        (none, (large,)),
        (third, (1e10,)),
        (positive, (large,)),
        (mixed, (large, 1e10)),
        (refusing, (large,)),
        (refusing, (-large,)),
    ]


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Let nothing else free objects while a test counts them, neither now nor later."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("number", range(len(calls())))
def test_references_do_not_leak(number: int, no_garbage: None) -> None:
    loop, arguments = calls()[number]
    watched = [*arguments, None, np.ndarray, TypeError, FAILURE, loop.run, loop.run.__self__]
    watched += [argument.dtype for argument in arguments if isinstance(argument, np.ndarray)]

    def repeat(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(TypeError, OverflowError, FAILURE):
                loop(*arguments)

    repeat(100)  # fills caches and free lists
    counts, blocks = [sys.getrefcount(one) for one in watched], sys.getallocatedblocks()
    repeat(2000)
    more = sys.getallocatedblocks() - blocks
    after = [sys.getrefcount(one) for one in watched]
    # The interpreter itself may keep a few references.
    assert max(abs(a - b) for a, b in zip(counts, after, strict=True)) < 200
    assert more < 200


def test_the_name_in_an_error_does_not_leak() -> None:
    def message() -> object:
        with pytest.raises(FAILURE) as caught:
            refusing(-1)
        return caught.value.args[0]

    name = message()
    assert message() is name
    before = sys.getrefcount(name)
    for _ in range(1000):
        with pytest.raises(FAILURE):
            refusing.run(-1)
    gc.collect()
    assert abs(sys.getrefcount(name) - before) < 100


def test_kernels_call_others_by_address() -> None:
    assert doubled(refuse.address, 21) == 42
    with pytest.raises(FAILURE):
        doubled(refuse.address, -1)
    assert apart(sized.address, np.zeros(5, np.float32), np.empty(1, np.int64)) == 4


def test_parentheses_make_one_parameter() -> None:
    x, out = np.arange(4, dtype=np.float32), np.empty(1, np.float32)
    assert grouping.types == ["int64", "in float32[]", "float32", "out float32[]", "int64"]
    assert grouped(grouping.signature, "abcde") == ["a", ("b", "c"), ("d", "e")]
    assert (grouping(7, x, 3, out, 1), out[0]) == (8, 3)
    assert (passing(5, x, out), out[0]) == (15, 15)
    with pytest.raises(TypeError):
        grouping(7, (x, 3), (out, 1))


def test_functions_outlive_the_loader() -> None:
    """At the end of a process, Python may free the loader before the functions."""
    own = loader.Loader(kernel_cache.entry_code())
    address = ctypes.addressof(own._method)
    del own
    gc.collect()
    others = [loader._Method(b"other", None, 0, None) for _ in range(10_000)]
    method = loader._Method.from_address(address)
    assert (method.name, method.flags) == (b"kernel", loader._FASTCALL) and others
