"""Kernels against their oracles, and the cache of compiled kernels."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st
from reference import halves, philox, sums
from segments import split_inputs

import gcodec
from gcodec.kernels.numeric import arithmetic, convert, log_histogram, norms, ranges, reduce
from gcodec.kernels.numeric import philox as words_of
from gcodec.kernels.numeric.arithmetic import ResidualUpdate
from gcodec.runtime import cover, kernel_cache
from gcodec.runtime.memory import aligned_empty

PACKAGE = Path(gcodec.__file__).parent


# --- reductions ---------------------------------------------------------------------------------


@given(gs.gradients(large=True, finite=False))
def test_sum_of_squares(x: np.ndarray) -> None:
    total, expected = reduce.sum_squares(x), sums.sum_squares(x)
    both_nan = np.isnan(total) and np.isnan(expected)
    assert np.float64(total).tobytes() == expected.tobytes() or both_nan


@pytest.mark.parametrize("n", [3 * 4096 + 5, 20_001, 65_537])
def test_sum_of_squares_over_tiles(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-20, 15, n)).astype(np.float32)
    expected = float(sums.sum_squares(x))
    assert reduce.sum_squares(x) == expected
    split_inputs(monkeypatch, 4096)
    for threads in ("2", "5"):
        monkeypatch.setenv("GCODEC_NUM_THREADS", threads)
        assert reduce.sum_squares(x) == expected


@pytest.mark.parametrize("tiles", [3, 5, 6, 7, 9])
def test_norms_add_tiles_in_the_fixed_order(tiles: int) -> None:
    """The first tile's norm lies between two float32, so the last bit of the sum decides."""
    buckets = np.zeros((100, tiles, 4096), np.float32)
    buckets[:, 0, :4] = 2**24, 2**12, 2**12, 1  # squares add up to (2^24 + 1)^2
    counts = np.random.default_rng(tiles).integers(0, 8, (100, tiles, 1))
    halves_of_bits = np.arange(16) < 2 * counts  # two squares of 1/8 are half of the last bit
    buckets[:, 1:, :16] = np.where(halves_of_bits, np.float32(1 / 8), 0)[:, 1:]
    expected = [np.float32(np.sqrt(sums.sum_squares(x))) for x in buckets.reshape(100, -1)]
    actual = norms.norms(buckets.reshape(-1), 4096 * tiles, "l2")
    assert gs.same_bits(actual, np.array(expected))


def test_sum_of_squares_recurses() -> None:
    """With more than 4096 tiles, sums of small integers are exact in any order."""
    x = np.resize(np.arange(-4, 5, dtype=np.float32), (1 << 24) + 4097)
    assert reduce.sum_squares(x) == float((x.astype(np.int64) ** 2).sum())


@given(gs.gradients(large=True, finite=False))
def test_largest_magnitude(x: np.ndarray) -> None:
    bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    assert reduce.max_abs_bits(x) == int(bits.max(initial=0))
    assert reduce.all_finite(x) == bool(np.isfinite(x).all())


def test_a_single_infinity_is_detected() -> None:
    x = np.zeros((1 << 20) + 3, np.float32)
    assert reduce.all_finite(x)
    for at in (0, 1, 1 << 19, (1 << 20) - 1, 1 << 20, (1 << 20) + 2):
        for value in (np.nan, -np.inf):
            x[at] = value
            assert not reduce.all_finite(x)
        x[at] = 0


# --- random words -------------------------------------------------------------------------------


@given(
    st.integers(0, 2**64 - 1),
    st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 60)),
    st.integers(0, 50),
    st.sampled_from([0, 1, 2**32, 2**64 - 1]),
)
def test_random_words(seed: int, start: int, count: int, stream: int) -> None:
    words = words_of.words(seed, start, count, stream)
    assert words.dtype == np.uint32
    assert words.tolist() == [philox.word(seed, start + i, stream) for i in range(count)]


def test_random_words_known_answer() -> None:
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words_of.words(0, 0, 4).tolist() == expected


def test_random_words_are_independent_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = words_of.words(9, 5, 4000)
    split_inputs(monkeypatch, 333, "3")
    assert np.array_equal(words_of.words(9, 5, 4000), whole)
    assert np.array_equal(words_of.words(9, 1005, 100), whole[1000:1100])


# --- 16-bit floats ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_16_bit_patterns_round_trip(dtype: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    wide = convert.from_16_bits(patterns, dtype)
    assert wide.tobytes() == halves.widen(patterns, dtype).tobytes()
    assert np.array_equal(convert.to_16_bits(wide, dtype), patterns)


def edges() -> np.ndarray:
    """Return bit patterns at and near ties between two 16-bit floats, and extremes."""
    tops = np.arange(0, 1 << 16, 61, dtype=np.uint32) << 16
    near = [tops + np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    steps = np.arange(0, 1 << 19, 997, dtype=np.uint32) << 13
    halfway = [steps + np.uint32(low) for low in (0xFFF, 0x1000, 0x1001)]
    exponents = np.arange(512, dtype=np.uint32) << 23
    about = [exponents, exponents + np.uint32(1), exponents - np.uint32(1)]
    return np.unique(np.concatenate([*near, *halfway, *about]).astype(np.uint32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrowing_rounds_to_nearest(dtype: str) -> None:
    rng = np.random.default_rng(2)
    patterns = np.concatenate([edges(), rng.integers(0, 1 << 32, 20_000, np.uint32)])
    x = patterns.view(np.float32)
    assert np.array_equal(convert.to_16_bits(x, dtype), halves.narrow(x, dtype))


def test_rounding_to_wide_dtypes_changes_nothing() -> None:
    x = np.ones(3, np.float32)
    assert convert.round_to(x, "float32") is x
    assert convert.round_to(x, "float64") is x
    third = np.full(1, 1 / 3, np.float32)
    assert convert.round_to(third, "bfloat16").tolist() == [0.333984375]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scale", [-1, 0.3])
def test_adding_rounded_values(dtype: str, scale: float) -> None:
    x = edges().view(np.float32)
    total = np.random.default_rng(3).standard_normal(x.size, np.float32)
    with np.errstate(all="ignore"):
        expected = total + np.float32(scale) * convert.round_to(x, dtype)
    convert.add_rounded(x, dtype, np.float32(scale), total)
    assert gs.same_bits(total, expected)


# --- sums of arrays -----------------------------------------------------------------------------


@given(gs.gradients(large=True, finite=False), st.sampled_from([1.0, 0.9, 0.0, -3.0, 1e30]))
def test_arithmetic(x: np.ndarray, factor: float) -> None:
    y = np.ascontiguousarray(x[::-1])
    scale = np.float32(factor)
    with np.errstate(all="ignore"):
        assert gs.same_bits(arithmetic.corrected(x, y, scale), x + scale * y)
        out = y.copy()
        top = reduce.max_abs_bits(x + scale * y)
        apart = np.full_like(out, 7)
        assert arithmetic.correct(x, y, scale, apart) == top
        assert gs.same_bits(apart, x + scale * y)
        update = ResidualUpdate(out, scale, out).saving()
        assert arithmetic.add_residual(x, update).top_bits == top
        assert gs.same_bits(out, x + scale * y) and gs.same_bits(update.former, y)
        update.restore()
        assert gs.same_bits(out, y)
        out[:] = apart
        arithmetic.add_scaled(y, scale, out)
        assert gs.same_bits(out, (x + scale * y) + scale * y)


@pytest.mark.parametrize("offset", [0, 3, 8])
def test_streamed_sums(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover, "_STREAMING", 1)
    for n in (1, 31, 32, 63, 500):
        rng = np.random.default_rng(n)
        for value in (1, np.inf, -np.nan):
            x, y = rng.standard_normal((2, n), np.float32)
            x[rng.integers(n)] = value
            out, scale = gs.placed(np.full(n, 9, np.float32), offset), np.float32(0.9)
            assert arithmetic.correct(x, y, scale, out) == reduce.max_abs_bits(x + scale * y)
            assert gs.same_bits(out, x + scale * y)


@pytest.mark.parametrize("bucket", [1, 32, 50, 64, 96, 4096, 10**6])
def test_ranges_of_streamed_sums(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover, "_STREAMING", 1)
    for n in (1, 31, 64, 500, 70_001):
        rng = np.random.default_rng(n)
        for value in (0, -3, np.inf, -np.nan):
            x, y = -np.abs(rng.standard_normal((2, n), np.float32))
            x[:: 3 if value == 0 else n] = y[:: 3 if value == 0 else n] = value
            out, scale = aligned_empty(n, np.float32), np.float32(0.9)
            in_place = gs.placed(y, 3)
            total = x + scale * y
            wanted, finite = ranges.ranges(total, bucket)
            for update in (
                ResidualUpdate(y, scale, out),
                ResidualUpdate(in_place, scale, in_place).saving(),
            ):
                statistics = arithmetic.add_residual(x, update, bucket)
                assert gs.same_bits(update.new_residual, total) and gs.same_bits(update.former, y)
                assert statistics.top_bits == reduce.max_abs_bits(total)
                if bucket % 32 and bucket < n:
                    assert statistics.ranges is None
                    continue
                assert statistics.ranges is not None
                assert statistics.ranges[1] == finite
                assert not finite or gs.same_bits(statistics.ranges[0], wanted)


@pytest.mark.parametrize("n", [1, 255, 4096, 10_000, 70_001])
@pytest.mark.parametrize("in_place", [False, True])
def test_moments_of_streamed_sums(n: int, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover, "_STREAMING", 1)
    rng, scale = np.random.default_rng(n), np.float32(0.9)
    for value in (1, np.inf, -np.nan):
        x, y, out = (aligned_empty(n, np.float32) for _ in range(3))
        x[:], y[:] = rng.standard_normal((2, n), np.float32)
        x[rng.integers(n)] = value
        wanted = x + scale * y
        former, update = y.copy(), ResidualUpdate(y, scale, out)
        if in_place:
            update = ResidualUpdate(y, scale, y).saving()
        statistics = arithmetic.add_residual_with_moments(x, update)
        moments = reduce.moments(wanted)
        assert moments.largest == reduce.max_abs_bits(wanted)
        if value == 1:
            assert moments[:2] == (sums.sum_values(wanted), sums.sum_squares(wanted))
        assert gs.same_bits(update.new_residual, wanted) and gs.same_bits(update.former, former)
        assert statistics.top_bits == moments.largest
        assert statistics.moments is not None
        assert gs.same_bits(np.array(statistics.moments[:2]), np.array(moments[:2]))
        assert np.isnan(moments.squares) or statistics.moments.squares == reduce.sum_squares(
            wanted
        )


@pytest.mark.parametrize("n", [0, 1, 31, 32, 1024, 20_000, 70_001])
@pytest.mark.parametrize("in_place", [False, True])
def test_histogram_of_sums(n: int, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, scale = np.random.default_rng(n), np.float32(0.9)
    for smallest, value in itertools.product((1, 1 << 40), (1, np.inf, -np.nan)):
        monkeypatch.setattr(cover, "_STREAMING", smallest)
        x, y, out = (aligned_empty(n, np.float32) for _ in range(3))
        x[:], y[:] = rng.standard_normal((2, n), np.float32)
        x[n // 2 : n // 2 + 1] = value
        wanted, former, update = x + scale * y, y.copy(), ResidualUpdate(y, scale, out)
        if in_place:
            update = ResidualUpdate(y, scale, y).saving()
        top_bits, counts = log_histogram.add_residual_with_histogram(x, update)
        assert gs.same_bits(update.new_residual, wanted) and gs.same_bits(update.former, former)
        assert top_bits == reduce.max_abs_bits(wanted)
        assert np.array_equal(counts, log_histogram.log_histogram(wanted))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_aligned_memory(size: int) -> None:
    for dtype in (np.uint8, np.uint16, np.float32, np.float64):
        x = aligned_empty(size, dtype)
        assert (x.size, x.dtype, x.ndim) == (size, dtype, 1)
        assert x.ctypes.data % 64 == 0 or size == 0
        assert x.flags.writeable and x.flags.c_contiguous


# --- the cache on disk --------------------------------------------------------------------------

PROBE = """
import sys
import numpy as np
from gcodec.kernels.bits import pack
from gcodec.kernels.numeric import convert
from gcodec.runtime import jit, kernel_cache
compiled = []
with kernel_cache.watched(compiled.append):
    print(pack.pack_fields(np.arange(8, dtype=np.uint8) % 2, pack.FieldLayout(1)).tolist())
print("compiled" if pack.packer(1, True).name in compiled else "loaded", len(compiled))
print(kernel_cache.directory() is not None, jit.checked())
"""


class Sandbox:
    """An editable copy of the package with a cache of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cache = root / "cache"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, root / "gcodec", ignore=ignored)

    def probe(self, program: str = PROBE, **variables: str) -> list[str]:
        """Pack eight codes in a new process; return codes, compiled kernels, and the cache."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GCODEC_")}
        # Sources change too quickly for the time stamps of bytecode.
        environment.pop("PYTHONPYCACHEPREFIX", None)
        environment |= {
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GCODEC_CACHE_DIR": str(self.cache),
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            cwd=self.root,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def edit(self, name: str, old: str, new: str) -> None:
        source = self.root / "gcodec" / "kernels" / name
        text = source.read_text(encoding="utf-8")
        assert old in text
        source.write_text(text.replace(old, new), encoding="utf-8")

    def builds(self) -> list[Path]:
        return sorted(self.cache.glob("kernels-*"))


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_the_cache_is_used_and_never_stale(sandbox: Sandbox) -> None:
    # Numba's own key does not cover a helper in another file than the kernel.
    with (sandbox.root / "gcodec" / "kernels" / "numeric" / "arithmetic.py").open("a") as file:
        file.write("\n\n@inline\ndef _helper(x):\n    return x\n")
    pool_import = "from gcodec.runtime import pool\n"
    helper_import = "from gcodec.kernels.numeric.arithmetic import _helper\n"
    sandbox.edit("bits/pack.py", pool_import, pool_import + helper_import)
    value = "np.uint8(x >> np.uint64(shift))"
    sandbox.edit("bits/pack.py", value, f"_helper({value})")

    assert sandbox.probe() == ["[85]", "compiled 1", "True False"]
    assert sandbox.probe() == ["[85]", "loaded 0", "True False"]
    (build,) = sandbox.builds()
    assert stat.S_IMODE(build.stat().st_mode) & 0o022 == 0
    # Kernels with bounds checks are others, in the same directory.
    for said in ("compiled 1", "loaded 0"):
        assert sandbox.probe(GCODEC_CHECKED="1") == ["[85]", said, "True True"]
    assert sandbox.probe() == ["[85]", "loaded 0", "True False"]
    assert sandbox.builds() == [build]
    sandbox.edit(
        "numeric/arithmetic.py", "    return x\n", "    return np.uint8(x ^ np.uint8(255))\n"
    )
    assert sandbox.probe() == ["[170]", "compiled 1", "True False"]
    assert len(sandbox.builds()) == 2


BEYOND = """
import numpy as np
from gcodec.kernels.numeric.arithmetic import _beyond
x = np.arange(9, dtype=np.float32)
try:
    _beyond(x[:4], 6, x[8:])
except IndexError as error:
    print("refused by", error)
else:
    print(x[8])
"""


def test_checked_builds_check_bounds(sandbox: Sandbox) -> None:
    """A checked build never loads an unchecked kernel, or the other way round."""
    with (sandbox.root / "gcodec" / "kernels" / "numeric" / "arithmetic.py").open("a") as file:
        file.write(
            '\n\n@kernel("in float32[], int64, out float32[]")\n'
            "def _beyond(x, i, out):\n    out[0] = x[i]\n"
        )
    refused = "refused by arithmetic._beyond"
    for checked, said in (("0", "6.0"), ("1", refused), ("0", "6.0"), ("1", refused)):
        assert sandbox.probe(BEYOND, GCODEC_CHECKED=checked) == [said]
    (build,) = sandbox.builds()
    assert len([path for path in build.iterdir() if "_beyond" in path.name]) == 2


def test_damaged_kernels_are_compiled_again(sandbox: Sandbox) -> None:
    assert sandbox.probe() == ["[85]", "compiled 1", "True False"]
    (build,) = sandbox.builds()
    files = list(build.iterdir())
    assert len(files) == 2  # of the kernel and of the entry
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    assert sandbox.probe() == ["[85]", "compiled 1", "True False"]
    assert sandbox.probe() == ["[85]", "loaded 0", "True False"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_an_unsafe_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "private"))
    directory = kernel_cache.directory()
    assert directory is not None
    for mode in (0o777, 0o770, 0o702):
        directory.chmod(mode)
        assert kernel_cache.directory() is None
    directory.chmod(0o700)
    assert kernel_cache.directory() == directory
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "file"))
    assert kernel_cache.directory() is None
    if os.geteuid() != 0:
        frozen = tmp_path / "frozen"
        frozen.mkdir(mode=0o500)
        monkeypatch.setenv("GCODEC_CACHE_DIR", str(frozen))
        assert kernel_cache.directory() is None


def test_variants_of_a_factory_are_distinguished_across_processes(tmp_path: Path) -> None:
    """Separate processes cache one variant each; one process then runs all of them."""
    program = (
        "import sys, numpy as np\n"
        "from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpack_fields\n"
        "for width in map(int, sys.argv[1:]):\n"
        "    codes = np.arange(40, dtype=np.uint8) % (1 << width)\n"
        "    packed = pack_fields(codes, FieldLayout(width))\n"
        "    bits = ''.join(format(code, f'0{width}b') for code in codes.tolist())\n"
        "    assert packed.tobytes() == int(bits, 2).to_bytes(5 * width, 'big'), width\n"
        "    assert np.array_equal(unpack_fields(packed, 40, FieldLayout(width)), codes), width\n"
    )
    environment = {**os.environ, "GCODEC_CACHE_DIR": str(tmp_path)}
    for widths in (["3"], ["5"], ["3", "5"], ["5", "3"]):
        command = [sys.executable, "-c", program, *widths]
        done = subprocess.run(
            command,
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
