"""Test exact patches on a device: the bytes, tensors and errors of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from reference import patch as reference
from samples import some_of
from shim import ShimDevice
from tensor_pairs import DTYPES, changed, damaged, pairs, patterns, repaired, small_pair, weights

import gcodec
from gcodec.codecs.patch.digest import LEAF_NBYTES, digest_of
from gcodec.kernels.bits.leaf_digests import leaf_digests
from gcodec.kernels.numeric import class_changes
from gcodec.kernels.numeric.class_changes import Contexts
from gcodec.runtime import cuda_grid
from gcodec.runtime import device as devices
from gcodec.runtime.device import Device, host

BFLOAT16 = DTYPES["bfloat16"]


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays have the same dtype, shape and bits, those of NaN included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def patches_agree(gpu: Device, old: np.ndarray, new: np.ndarray) -> bytes:
    """Check frames and new tensors in new arrays, in other arrays and in place."""
    frame, base = gcodec.encode_patch(new, base=old), gpu.to_device(old)
    assert gcodec.encode_patch(gpu.to_device(new), base=base) == frame
    result, out = gcodec.apply_patch(frame, base), gpu.to_device(np.zeros_like(old))
    assert gpu.owns(result) and identical(gpu.to_host(result), new)
    assert gcodec.apply_patch(frame, base, out=out) is out
    assert identical(gpu.to_host(out), new)
    assert identical(gpu.to_host(base), old), "the base was written to"
    assert gcodec.apply_patch(frame, base, out=base) is base
    assert identical(gpu.to_host(base), new)
    return frame


def test_all_dtypes(gpu: Device) -> None:
    cases = [pair for dtype in DTYPES.values() for pair in pairs(dtype)]
    for _, old, new in some_of(gpu, cases, 5):
        patches_agree(gpu, old, new)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_few_elements(gpu: Device, dtype: np.dtype[Any]) -> None:
    for n, share in ((1, 1.0), (31, 0.2), (33, 0.9), (300, 0.1)):
        old = weights(dtype, n)
        patches_agree(gpu, old, changed(old, share, 3))


def test_ends_of_parts(gpu: Device) -> None:
    """Changes at both ends of parts, and parts without any."""
    for n in (1023, 1024, 1025, 2048, 8192, 8193):
        old, at = weights(BFLOAT16, n), np.array([0, 1023, 1024, n - 1])
        new = old.copy()
        patterns(new)[at[at < n]] ^= 1
        patches_agree(gpu, old, new)


@pytest.mark.parametrize("is_float", [False, True])
def test_arrays_that_exceed_the_grid(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, is_float: bool
) -> None:
    monkeypatch.setattr(cuda_grid, "_MAX_STRIDING_BLOCKS", 1)
    old = weights(DTYPES["float16" if is_float else "int16"], 9000)
    patches_agree(gpu, old, changed(old, 0.02, 3))


def test_booleans(gpu: Device) -> None:
    rng = np.random.default_rng(0)
    old, new = rng.random((2, 3000)) < [[0.5], [0.45]]
    frame = patches_agree(gpu, old, new)
    # Bytes above 1 mean True.
    base, other = (gpu.to_device(x.view(np.uint8) * np.uint8(7)).view(bool) for x in (old, new))
    assert gcodec.encode_patch(other, base=base) == frame
    gcodec.apply_patch(frame, base, out=base)
    assert identical(gpu.to_host(base), new)


def test_forged_booleans(gpu: Device) -> None:
    """The bytes are valid, but the new elements are neither true nor false."""
    old = np.arange(50) % 3 == 0
    honest = gcodec.encode_patch(old, base=old)
    digest = reference.digest(old.tobytes())
    wrong = patterns(old) + np.uint8(2) * (np.arange(50) == 33)
    forged = (
        digest + b"\x01" + wrong.tobytes(),
        reference.write(
            wrong.tolist(), patterns(old).tolist(), 1, "bool", [], [reference.Class(2, 1)]
        ),
    )
    for payload in forged:
        base = gpu.to_device(old)
        for here in (old.copy(), base):
            with pytest.raises(gcodec.Corrupt, match="element 33 is neither true nor false"):
                gcodec.apply_patch(repaired(honest, payload), here, out=here)
            assert identical(host(here), old)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits(gpu: Device, name: str) -> None:
    if not isinstance(gpu, ShimDevice):
        pytest.skip("CuPy has no floats of 8 bits")
    old = np.random.default_rng(0).standard_normal((50, 60)).astype(getattr(ml_dtypes, name))
    patches_agree(gpu, old, changed(old, 0.02, 1))
    other = gpu.to_device(old.view(np.uint8))
    with pytest.raises(gcodec.ParameterError, match=rf"^base\.dtype='{name}': must be uint8"):
        gcodec.encode_patch(other, base=gpu.to_device(old))


def test_every_pattern_of_16_bits(gpu: Device) -> None:
    old = np.arange(1 << 16, dtype=np.uint16)
    for step, dtype in ((1, BFLOAT16), (0x8000, np.int16), (0x3F80, np.float16)):
        patches_agree(gpu, old.view(dtype), (old + np.uint16(step)).view(dtype))


def test_other_classes(gpu: Device) -> None:
    """Bounds that gcodec would not select, such as those of classes without elements."""
    old = weights(BFLOAT16, 2500)
    new = changed(old, 0.1, 60)
    bits, own = patterns(new).tolist(), patterns(old).tolist()
    honest = gcodec.encode_patch(new, base=old)
    for bounds in ([1, 2, 3, 254, 255], [120, 124, 126, 127, 128], [126], [255]):
        present = np.bincount(
            [reference.class_of(a, bounds, "bfloat16") for a in own], minlength=len(bounds) + 1
        )
        classes = [reference.Class(2 if count else 0, 1 if count else 0) for count in present]
        data = reference.write(bits, own, 2, "bfloat16", bounds, classes)
        result = gcodec.apply_patch(repaired(honest, data), gpu.to_device(old))
        assert identical(gpu.to_host(result), new), bounds


def test_classes_that_change_nothing(gpu: Device) -> None:
    old = weights(BFLOAT16, 100)
    honest = gcodec.encode_patch(old, base=old)
    data = reference.digest(patterns(old).tobytes()) + bytes([2, 1, 100, 0])
    assert identical(
        gpu.to_host(gcodec.apply_patch(repaired(honest, data), gpu.to_device(old))), old
    )


def test_kernels(gpu: Device) -> None:
    """Counts, and changes by classes, equal those of the CPU for any contexts and bounds."""
    rng = np.random.default_rng(0)
    old = rng.integers(0, 1 << 32, 3000, np.uint32)
    new = np.where(rng.random(3000) < 0.1, rng.integers(0, 1 << 32, 3000, np.uint32), old)
    on_device = gpu.to_device(old), gpu.to_device(new)
    for contexts, bounds in (
        (Contexts(23, True), (3, 90, 91, 200, 255)),
        (Contexts(23, True), (100,)),
        (Contexts(0, False), ()),
    ):
        here = class_changes.tally(old, new, contexts)
        known = class_changes.tally(*on_device, contexts)
        assert all(np.array_equal(a.sum(0), b.sum(0)) for a, b in zip(here, known, strict=True))
        wanted = class_changes.split(old, new, contexts, bounds, here)
        actual = class_changes.split(*on_device, contexts, bounds, known)
        assert all(identical(a, b) for a, b in zip(actual, wanted, strict=True))
        sizes = class_changes.class_sizes(old, contexts, bounds).totals
        totals = class_changes.class_sizes(on_device[0], contexts, bounds).totals.value
        assert np.array_equal(totals, sizes[: len(bounds) + 1])


# --- digests ------------------------------------------------------------------------------------


def test_digests(gpu: Device) -> None:
    sizes = (0, 1, 7, 8, 9, 127, 128, 129, 255, 256, 257, 1000, 4096)
    data = np.random.default_rng(0).integers(0, 256, max(sizes), np.uint8)
    for n in sizes:
        assert digest_of(gpu.to_device(data[:n])).value == reference.digest(data[:n].tobytes())
    wide = data[:4000].view(np.uint64)
    assert digest_of(gpu.to_device(wide)).value == reference.digest(wide.tobytes())


def test_digests_of_many_leaves(gpu: Device) -> None:
    data = np.random.default_rng(1).integers(0, 256, 20 * 384 + 3, np.uint8)
    for leaf in (128, 384, 1 << 20):
        for n in (leaf, 7 * leaf + 1, 8 * leaf, 8 * leaf + 1, 17 * leaf - 8, 20 * leaf + 3):
            part = data[:n]
            copy = gpu.to_device(np.zeros_like(part))
            actual = leaf_digests(gpu.to_device(part), leaf, copy)
            assert identical(host(actual.value), leaf_digests(part, leaf)), (leaf, n)
            assert identical(host(copy), part)


def test_digests_of_whole_leaves() -> None:
    device = ShimDevice("shuffled")
    with devices.use(device):
        data = np.random.default_rng(2).integers(0, 256, LEAF_NBYTES + 5, np.uint8)
        assert digest_of(device.to_device(data)).value == reference.digest(data.tobytes())


# --- arguments and damage -----------------------------------------------------------------------


def outcome(call: Callable[[], object]) -> tuple[type[Exception], str] | None:
    """Return the type and the text of the error that a call raises."""
    try:
        call()
    except gcodec.GcodecError as error:
        return type(error), str(error)
    return None


def same_outcome(gpu: Device, frame: bytes | gcodec.Frame, old: np.ndarray) -> bool:
    """Check errors and tensors in place; return whether the frame is refused."""
    here, base = old.copy(), gpu.to_device(old)
    error = outcome(lambda: gcodec.apply_patch(frame, here, out=here))
    assert outcome(lambda: gcodec.apply_patch(frame, base, out=base)) == error
    assert identical(gpu.to_host(base), here)
    assert error is None or identical(here, old)
    return error is not None


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8", "bool"])
def test_damaged_messages(gpu: Device, name: str) -> None:
    old, new = small_pair(name)
    frame = gcodec.encode_patch(new, base=old)
    cases = some_of(gpu, list(damaged(gcodec.Frame.from_bytes(frame).payload.tobytes())), 3)
    refused = sum(same_outcome(gpu, repaired(frame, data), old) for data in cases)
    assert len(cases) // 3 < refused < len(cases)


def test_other_bases(gpu: Device) -> None:
    old = weights(BFLOAT16, 2000)
    frame = gcodec.encode_patch(changed(old, 0.02, 2), base=old)
    other = old.copy()
    patterns(other)[-1] ^= 1
    assert same_outcome(gpu, frame, other)
    start = reference.digest(patterns(old[:50]).tobytes()) + b"\x02"
    small = gcodec.encode_patch(old[:50], base=old[:50])
    assert same_outcome(gpu, repaired(small, start + bytes([2, 255, 20, 0, 30, 0])), old[:50])
    base = gpu.to_device(old)
    with pytest.raises(gcodec.ParameterError, match=r"^base\.dtype='float16': must be bfloat16"):
        gcodec.apply_patch(frame, gpu.to_device(old.astype(np.float16)))
    with pytest.raises(gcodec.ParameterError, match=r"^base\.shape="):
        gcodec.encode_patch(gpu.to_device(old.reshape(2, -1)), base=base)
    with pytest.raises(gcodec.ParameterError, match=r"^out\.shape="):
        gcodec.apply_patch(frame, base, out=base[:-1])
    with pytest.raises(gcodec.ParameterError, match=r"^out\.dtype="):
        gcodec.apply_patch(frame, base, out=base.view(np.int16))
    assert identical(gpu.to_host(base), old)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
def test_out_of_memory_leaves_the_output_unchanged(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The changes do not fit on the device, or the new elements."""
    rng = np.random.default_rng(0)
    near, unrelated = (rng.integers(0, 256, 2000, np.uint8) for _ in range(2))
    old = (near % 2 == 0) if dtype == "bool" else near.astype(BFLOAT16)
    for new in (changed(old, 0.02, 1), unrelated.astype(old.dtype)):
        if dtype == "bool":
            new = new.view(np.uint8) % 2 == 0
        frame, base, kept = (
            gcodec.encode_patch(new, base=old),
            gpu.to_device(old),
            new[::-1].copy(),
        )
        out = gpu.to_device(kept)

        def full(*_: Any) -> Any:
            raise MemoryError("Out of memory")

        with monkeypatch.context() as patched:
            patched.setattr(type(gpu), "to_device", full)
            for target in (out, base):
                with pytest.raises(MemoryError, match="Out of memory"):
                    gcodec.apply_patch(frame, base, out=target)
        assert identical(gpu.to_host(out), kept) and identical(gpu.to_host(base), old)


def test_all_arrays_lie_on_one_device(gpu: Device) -> None:
    old = weights(BFLOAT16, 100)
    base, frame = gpu.to_device(old), gcodec.encode_patch(old, base=old)
    for call, names in (
        (lambda: gcodec.encode_patch(base, base=old), "base and new"),
        (lambda: gcodec.encode_patch(old, base=base), "base and new"),
        (lambda: gcodec.apply_patch(frame, base, out=old.copy()), "out and base"),
        (lambda: gcodec.apply_patch(frame, old, out=base), "out and base"),
    ):
        text = f"^{names} are on different devices: must be on the same one$"
        with pytest.raises(gcodec.ParameterError, match=text):
            call()


def test_strided_and_overlapping_arrays(gpu: Device) -> None:
    memory = np.arange(4000, dtype=np.float32)
    on_device, old = gpu.to_device(memory), memory[::2].copy()
    base = on_device[::2]
    frame = gcodec.encode_patch(old + np.float32(0.5), base=old)
    assert gcodec.encode_patch(gpu.to_device(old + np.float32(0.5)), base=base) == frame
    with pytest.raises(gcodec.ParameterError, match="out is strided"):
        gcodec.apply_patch(frame, base, out=base)
    shifted = on_device[3:2003]  # not aligned to 16 bytes
    new = memory[3:2003] * np.float32(1.001)
    frame = gcodec.encode_patch(new, base=memory[3:2003])
    assert gcodec.encode_patch(gpu.to_device(new), base=shifted) == frame
    gcodec.apply_patch(frame, shifted, out=on_device[4:2004])  # which shares memory with the base
    assert identical(gpu.to_host(on_device[4:2004]), new)
    assert identical(gpu.to_host(on_device[:4]), memory[:4])
    on_device = gpu.to_device(memory)
    gcodec.apply_patch(frame, on_device[3:2003], out=on_device[3:2003])
    assert identical(gpu.to_host(on_device[3:2003]), new)
    on_device = gpu.to_device(memory)
    gcodec.apply_patch(
        gcodec.encode_patch(new, base=memory[4:2004]), on_device[4:2004], out=on_device[3:2003]
    )
    assert identical(gpu.to_host(on_device[3:2003]), new)


@pytest.mark.parametrize(
    ("kind", "encodes", "applies"),
    [("unchanged", 1, 1), ("changed", 2, 1), ("stored", 3, 1), ("booleans", 2, 2)],
)
def test_waits(kind: str, encodes: int, applies: int) -> None:
    """docs/gpu.md states how often the host waits for the device."""
    old = weights(BFLOAT16, 2000)
    new = changed(old, 0.02 if kind == "changed" else 0, 2)
    if kind == "stored":
        new = np.random.default_rng(0).integers(0, 1 << 16, 2000, np.uint16).view(BFLOAT16)
    if kind == "booleans":
        old, new = np.arange(200) % 2 == 0, np.arange(200) % 19 == 0
    device = ShimDevice()
    with devices.use(device):
        a, b = device.to_device(old), device.to_device(new)
        frame = gcodec.encode_patch(b, base=a)
        assert device.fetched == encodes
        gcodec.apply_patch(frame, a, out=a)
        assert device.fetched == encodes + applies
