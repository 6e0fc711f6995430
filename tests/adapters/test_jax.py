"""gcodec.jax: arrays in and out, and functions under jit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.errors import ParameterError

jax = pytest.importorskip("jax", reason="jax is not installed")

import gcodec.jax  # noqa: E402

SPEC = "qsgd:s=3"


def sample(dtype: str = "float32") -> Any:
    return (jax.numpy.arange(-6, 6, dtype="float32").reshape(3, 4) / 4).astype(dtype)


@contextmanager
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jit_gives_the_same_bits(dtype: str) -> None:
    x = sample(dtype)
    frame = gcodec.jax.encode(x, SPEC, seed=5)
    assert frame == gcodec.encode(x, SPEC, seed=5)
    decoded = gcodec.jax.decode(frame)
    assert isinstance(decoded, jax.Array)
    assert decoded.dtype == x.dtype
    whole = jax.jit(lambda x, seed: gcodec.jax.roundtrip(x, SPEC, seed=seed))(x, 5)
    buffer, length = jax.jit(lambda x: gcodec.jax.encode_padded(x, SPEC, seed=5))(x)
    assert buffer.size == gcodec.parse(SPEC).max_encoded_nbytes(12)
    assert bytes(np.asarray(buffer)[: int(length)]) == frame
    assert not np.asarray(buffer)[int(length) :].any()
    parts = jax.jit(lambda b, n: gcodec.jax.decode_padded(b, n, x))(buffer, length)
    for result in (whole, parts):
        assert result.dtype == x.dtype
        assert np.array_equal(result, decoded)


@pytest.mark.parametrize("spec", ["minmax", "ecsq:step=1e-39", "qsgd", "sign"])
def test_subnormal_numbers_survive_in_threads_of_jax(spec: str) -> None:
    """JAX calls functions on the host in threads that flush subnormal numbers to zero."""
    x = (np.random.default_rng(4).standard_normal(300) * 1e-39).astype(np.float32)
    frame = gcodec.encode(x, spec)
    buffer, length = jax.jit(lambda x: gcodec.jax.encode_padded(x, spec))(x)
    assert bytes(np.asarray(buffer)[: int(length)]) == frame
    decoded = jax.jit(lambda b, n: gcodec.jax.decode_padded(b, n, x))(buffer, length)
    assert np.asarray(decoded).tobytes() == gcodec.decode(frame).tobytes()


def test_padded_buffers_fit_shape_dependent_codecs() -> None:
    for spec in ("dct8:chunk=2x2,k=2,layout=tiles", "topk:k=2", "ecsq:step=0.5", "raw"):
        _, length = gcodec.jax.encode_padded(sample(), spec)
        assert int(length) == len(gcodec.encode(sample(), spec))
        assert gcodec.jax.roundtrip(sample()[:0], spec).shape == (0, 4)


SHARDED = """
import jax, numpy as np, gcodec.jax
from jax.sharding import NamedSharding, PartitionSpec
x = jax.numpy.arange(8, dtype="float32")
whole = gcodec.jax.encode(x, "raw")
split = jax.device_put(x, NamedSharding(jax.make_mesh((2,), ("device",)), PartitionSpec("device")))
assert len(split.sharding.device_set) == 2
assert gcodec.jax.encode(split, "raw") == whole
buffer, length = jax.jit(lambda x: gcodec.jax.encode_padded(x, "raw"))(split)
assert ((buffer + 0)[: int(length + 0)] == np.frombuffer(whole, np.uint8)).all()
back = jax.jit(lambda *message: gcodec.jax.decode_padded(*message, like=x))(buffer, length)
assert (back == x).all()
assert (jax.jit(lambda x: gcodec.jax.roundtrip(x, "raw"))(split) == x).all()
message = gcodec.jax.encode_padded(split, "raw")  # and outside of jit
assert (gcodec.jax.decode_padded(*message, like=split) + split == 2 * x).all()
assert (gcodec.jax.roundtrip(split, "raw") + split == 2 * x).all()
"""


def test_results_of_sharded_arrays_take_part_in_later_operations() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    run = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, env=environment)
    assert not run.returncode, run.stderr.decode()


MAPPED = """
import numpy as np
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gcodec.jax

x = jnp.arange(-8.0, 8.0, dtype="float32").reshape(4, 4) / 4
split, whole = PartitionSpec("device"), PartitionSpec()
mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,))


def mapped(function, *, of, to):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=of, out_specs=to))


def loss(x, seed=0):
    return 3 * gcodec.jax.roundtrip(x, "sign", seed=seed)


slope = mapped(jax.grad(lambda x: loss(x).sum()), of=split, to=split)(x)
assert np.array_equal(slope, np.full((4, 4), 3, np.float32))
losses = mapped(lambda x: loss(x, jax.lax.axis_index("device"))[None], of=whole, to=split)
assert np.array_equal(jax.jit(jax.grad(lambda x: losses(x).sum()))(x), np.full((4, 4), 6))
steps = mapped(
    lambda x: jax.lax.scan(lambda y, _: (loss(y), None), x, length=2)[0], of=split, to=split
)
assert np.array_equal(steps(x)[:2], loss(loss(x[:2])))
for function in (loss, lambda x: gcodec.jax.encode_padded(x, "sign")[0]):
    try:
        mapped(function, of=split, to=whole)(x)
    except ValueError as error:
        assert "out_specs" in str(error)
    else:
        raise AssertionError("a result that differs between devices was taken for a replica")

explicit = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Explicit,))
set_mesh = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh  # before JAX 0.7
with set_mesh(explicit):
    rows = jax.device_put(x, NamedSharding(explicit, split))
    slope = jax.jit(jax.grad(lambda x: loss(x).sum()))(rows)
    assert np.array_equal(slope, np.full((4, 4), 3, np.float32))
"""


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="JAX has no shard_map, or an old one")
def test_results_in_shard_map_differ_between_devices() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    run = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, env=environment)
    assert not run.returncode, run.stderr.decode()


def test_vmap_encodes_rows_separately() -> None:
    rows = jax.vmap(lambda row: gcodec.jax.roundtrip(row, "sign"))(sample())
    for row, x in zip(rows, sample(), strict=True):
        assert np.array_equal(row, gcodec.decode(gcodec.encode(x, "sign")))


def test_equal_calls_outside_of_jit_are_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    """JAX keeps what it compiles, about a mebibyte for each callback."""

    def call() -> None:
        x = sample()
        gcodec.jax.roundtrip(x, "qsgd", seed=3)
        jax.grad(lambda x: gcodec.jax.roundtrip(x, gcodec.parse("qsgd")).sum())(x)
        gcodec.jax.decode_padded(*gcodec.jax.encode_padded(x, "sign"), like=x)

    call()
    with jax.log_compiles(), caplog.at_level("DEBUG"):
        jax.jit(lambda: jax.numpy.zeros(7))()
        assert "Compiling" in caplog.text
        caplog.clear()
        call()
    assert "Compiling" not in caplog.text


def test_gradients_pass_straight_through() -> None:
    x, weights = sample(), jax.numpy.arange(12.0).reshape(3, 4)

    def loss(x: Any, seed: Any = 5) -> Any:
        return (weights * gcodec.jax.roundtrip(x, SPEC, seed=seed)).sum()

    assert np.array_equal(jax.grad(loss)(x), weights)
    assert np.array_equal(jax.jit(jax.grad(loss))(x, 7), weights)
    value, gradient = jax.jit(jax.value_and_grad(loss))(x, 7)
    decoded = gcodec.decode(gcodec.encode(x, SPEC, seed=7))
    assert value == pytest.approx(float((weights * decoded).sum()), rel=1e-6)
    assert np.array_equal(gradient, weights)

    def row_loss(row: Any, weights: Any) -> Any:
        return (weights * gcodec.jax.roundtrip(row, "sign") ** 2).sum()

    rows = jax.jit(jax.vmap(jax.grad(row_loss)))(x, weights)
    for row, values, factors in zip(rows, x, weights, strict=True):
        assert np.allclose(row, 2 * factors * gcodec.decode(gcodec.encode(values, "sign")))
    assert jax.grad(lambda x: gcodec.jax.roundtrip(x, "sign").sum())(sample("bfloat16")).dtype == (
        "bfloat16"
    )


def test_decode_like_and_device() -> None:
    x = sample()
    frame = gcodec.jax.encode(x, "raw")
    assert gcodec.jax.decode(frame, like=x.astype("bfloat16")).dtype == "bfloat16"
    device = jax.devices()[0]
    assert gcodec.jax.decode(frame, device=device).devices() == {device}
    with pytest.raises(ParameterError, match=r"like\.shape"):
        gcodec.jax.decode(frame, like=x.T)
    with pytest.raises(TypeError, match=r"or call roundtrip and encode_padded of gcodec\.jax"):
        jax.jit(lambda x: gcodec.jax.encode(x, "raw"))(x)


def test_padded_frames_have_room_for_every_bit_of_float64() -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(800))
    room = gcodec.parse("lossless").max_encoded_nbytes(values.size, dtype="float64")
    with x64():
        buffer, length = gcodec.jax.encode_padded(jax.numpy.asarray(values), "lossless")
    assert values.nbytes < int(length) <= buffer.size == room


def test_callback_errors_are_reported() -> None:
    buffer, length = gcodec.jax.encode_padded(sample(), "raw")
    with pytest.raises(Exception, match=r"frame=\(\(3, 4\), 'float32'\): must be \(\(12,\)"):
        gcodec.jax.decode_padded(buffer, length, sample().reshape(-1)).block_until_ready()
    with pytest.raises(Exception, match=r"frame=\(\(3, 4\), 'float32'\): must be \(\(4,\)"):
        gcodec.jax.decode_padded(buffer, length, sample()[0]).block_until_ready()
    with pytest.raises(Exception, match="Truncated"):
        gcodec.jax.decode_padded(buffer, 11, sample()).block_until_ready()


@pytest.mark.parametrize("seed", [2**31, 2**64 - 1, np.uint64(2**40 + 5), np.array(2**40)])
def test_seeds_of_64_bits(seed: Any) -> None:
    """JAX itself has no integers of 64 bits, unless x64 is enabled."""
    frame = gcodec.encode(sample(), SPEC, seed=int(seed))
    buffer, length = gcodec.jax.encode_padded(sample(), SPEC, seed=seed)
    assert bytes(np.asarray(buffer)[: int(length)]) == frame
    for call in (lambda f: f, jax.jit, jax.vmap):
        x = sample()[None] if call is jax.vmap else sample()
        decoded = call(lambda x: gcodec.jax.roundtrip(x, SPEC, seed=seed))(x)
        assert np.array_equal(decoded.reshape(3, 4), gcodec.decode(frame))
    slope = jax.grad(lambda x: gcodec.jax.roundtrip(x, SPEC, seed=seed).sum())(sample())
    assert np.array_equal(slope, np.ones((3, 4)))


@pytest.mark.parametrize("make", [int, np.int64, np.array, jax.numpy.array, jax.numpy.uint32])
def test_all_functions_take_the_same_seeds(make: Any) -> None:
    frame = gcodec.encode(sample(), SPEC, seed=5)
    assert gcodec.jax.encode(sample(), SPEC, seed=make(5)) == frame
    buffer, length = gcodec.jax.encode_padded(sample(), SPEC, seed=make(5))
    assert bytes(np.asarray(buffer))[: int(length)] == frame


def test_traced_seed_is_refused_where_a_frame_is_returned() -> None:
    def call(seed: Any) -> int:
        return len(gcodec.jax.encode(sample(), SPEC, seed=seed))

    with pytest.raises(ParameterError, match=r"seed=.*: must be known; inside of jit"):
        jax.jit(call)(5)


@pytest.mark.parametrize("seed", [3.5, -1, True, "1", np.int32(-1), 2**64])
def test_non_integer_seed_is_refused(seed: Any) -> None:
    """Refuse 3.5, also if it is traced, instead of truncating it to 3."""
    for call in (gcodec.jax.roundtrip, gcodec.jax.encode_padded):
        with pytest.raises(ParameterError, match="seed="):
            call(sample(), "qsgd", seed=seed)
    with pytest.raises(ParameterError, match=r"seed\.dtype='float32'"):
        jax.jit(lambda x, s: gcodec.jax.roundtrip(x, "qsgd", seed=s))(sample(), 3.5)
    with pytest.raises(ParameterError, match=r"seed\.dtype='key"):
        gcodec.jax.roundtrip(sample(), "qsgd", seed=jax.random.key(0))
    with pytest.raises(ParameterError, match=r"seed\.shape=\(2,\): must be \(\), that of one"):
        gcodec.jax.roundtrip(sample(), "qsgd", seed=jax.random.PRNGKey(0))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "float8_e4m3fn"])
def test_other_dtypes_are_refused_while_jax_traces(dtype: str) -> None:
    """JAX would wrap an error of the callback in one of its own, with 50 lines of traceback."""
    x = jax.numpy.ones(3, dtype)
    for call in (gcodec.jax.roundtrip, gcodec.jax.encode_padded):
        with pytest.raises(TypeError, match=f"^x has dtype {dtype}: gcodec takes float32"):
            jax.eval_shape(functools.partial(call, codec="sign"), x)
    if dtype in ("int32", "bool"):
        assert np.array_equal(gcodec.jax.roundtrip(x, "raw"), x)


def test_integers_keep_their_values() -> None:
    assert gcodec.jax.decode(gcodec.encode(np.array([-3, 5]), "raw")).tolist() == [-3, 5]
    for array in (np.array([2**40]), np.array([2**63], np.uint64)):
        frame = gcodec.encode(array, "raw")
        with pytest.raises(ParameterError, match=rf"^frame\.dtype='{array.dtype}': must be .*x64"):
            gcodec.jax.decode(frame)
        for call in (gcodec.jax.roundtrip, gcodec.jax.encode_padded):
            with pytest.raises(ParameterError, match=rf"^x\.dtype='{array.dtype}': must be .*x64"):
                call(array, "raw")
        with x64():
            assert gcodec.jax.decode(frame).tolist() == array.tolist()
            assert gcodec.jax.roundtrip(array, "raw").tolist() == array.tolist()
    assert gcodec.jax.roundtrip(np.array([-3, 5]), "raw").tolist() == [-3, 5]


def test_values_beyond_float32_become_infinite_without_a_warning() -> None:
    frame = gcodec.encode(np.array([1e300, -2.0]), "lossless")
    assert gcodec.jax.decode(frame).tolist() == [np.inf, -2]
    assert gcodec.jax.decode(frame, like=jax.numpy.zeros(2)).tolist() == [np.inf, -2]


def test_donated_arrays_are_refused() -> None:
    x = sample()
    x.delete()
    with pytest.raises(TypeError, match=r"^x cannot be read: Array has been deleted"):
        gcodec.jax.encode(x, "sign")


def test_objects_that_are_no_arrays_are_refused() -> None:
    buffer, length = gcodec.jax.encode_padded(jax.numpy.ones(2), "sign")
    for call, name in (
        (lambda: gcodec.jax.roundtrip([1.0, 2.0], "sign"), "x"),
        (lambda: gcodec.jax.encode_padded(1.0, "sign"), "x"),
        (lambda: gcodec.jax.decode_padded(buffer, length, like=[1.0]), "like"),
    ):
        with pytest.raises(ParameterError, match=f"^{name}='(list|float)': must be an array"):
            call()


def test_arguments_of_decode_padded_in_another_order_are_refused() -> None:
    x = jax.numpy.ones(2)
    buffer, length = gcodec.jax.encode_padded(x, "sign")
    for arguments, message in (
        ((length, buffer), "^buffer='int32 of 0 dimensions': must be a vector of uint8"),
        ((buffer[None], length), "^buffer='uint8 of 2 dimensions': must be a vector"),
        ((None, length), "^buffer='NoneType': must be an array"),
        ((buffer, x[0]), "^length=.*: must be an integer"),
        ((buffer, None), "^length='NoneType': must be an array"),
        ((buffer, length[None]), "^length=.*: must be an integer"),
    ):
        with pytest.raises(ParameterError, match=message):
            gcodec.jax.decode_padded(*arguments, like=x)
        with pytest.raises(ParameterError, match=message):
            jax.jit(lambda *values: gcodec.jax.decode_padded(*values, like=x))(*arguments)
    buffers, lengths = jax.vmap(lambda x: gcodec.jax.encode_padded(x, "sign"))(
        jax.numpy.ones((3, 2))
    )
    decoded = jax.vmap(lambda *values: gcodec.jax.decode_padded(*values, like=x))(buffers, lengths)
    assert decoded.shape == (3, 2)


def test_random_keys_are_refused_with_advice() -> None:
    key = jax.random.key(0)
    with pytest.raises(TypeError, match=r"jax\.random\.key_data\(x\)"):
        gcodec.jax.encode(key, "raw")
    with pytest.raises(ParameterError, match=r"x\.dtype='key<fry>': must be a dtype of NumPy"):
        gcodec.jax.roundtrip(key, "raw")


def test_frames_of_two_gibibytes_are_refused() -> None:
    x = jax.ShapeDtypeStruct((1 << 29,), np.float32)
    with pytest.raises(ParameterError, match=r"x\.shape=.*2 GiB"):
        jax.eval_shape(lambda x: gcodec.jax.encode_padded(x, "raw"), x)


def test_import_without_jax() -> None:
    code = "import sys; sys.modules['jax'] = None\nimport gcodec.jax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("needs JAX: pip install 'gcodec[jax]'")
