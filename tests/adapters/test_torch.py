"""gcodec.torch without a process group: tensors, messages of buckets, settings of the hook."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.errors import Corrupt, ParameterError

torch = pytest.importorskip("torch", reason="torch is not installed")

import gcodec.torch  # noqa: E402
from gcodec.torch.messages import BucketCoder, Key, Part  # noqa: E402
from gcodec.torch.selection import joined_policy  # noqa: E402
from gcodec.torch.settings import Settings  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "keyed": False,
    "feedback": True,
    "decay": 1.0,
    "start_iter": 2,
    "seed": 0,
    "exclude": (),
    "min_numel": 8,
    "group_below": 0,
    "named": True,
}


def settings(codec: Any, *, policy: Any = None, **options: Any) -> Settings:
    return Settings(joined_policy(policy, codec), **{**DEFAULTS, **options})


# --- tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_tensor_round_trip(dtype: str) -> None:
    x = torch.arange(-6, 6, dtype=torch.float32).reshape(3, 4).to(getattr(torch, dtype))
    x.requires_grad_()
    frame = gcodec.torch.encode(x.T, "raw", name="w")
    assert frame == gcodec.encode(x.T, "raw", name="w")
    decoded = gcodec.torch.decode(frame)
    assert type(decoded) is torch.Tensor
    assert decoded.dtype is x.dtype
    assert torch.equal(decoded, x.T)
    like = torch.zeros(4, 3, dtype=torch.bfloat16)
    assert torch.equal(gcodec.torch.decode(frame, like=like), x.T.bfloat16())
    assert gcodec.torch.decode(frame, device="meta").is_meta
    with pytest.raises(ParameterError, match=r"like\.shape"):
        gcodec.torch.decode(frame, like=x)
    with pytest.raises(TypeError, match=r"^like is of type ndarray: must be a torch.Tensor$"):
        gcodec.torch.decode(frame, like=like.float().numpy())
    with pytest.raises(TypeError, match="not a dense tensor"):
        gcodec.torch.encode(x.detach().to_sparse(), "raw")
    with pytest.raises(TypeError, match="on meta"):
        gcodec.torch.encode(x.to("meta"), "raw")
    with pytest.raises(TypeError, match="x is of type list"):
        gcodec.torch.encode([1.0], "raw")


def test_device_number_zero_is_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    empty = torch.empty

    def empty_on(*sizes: int, device: Any) -> torch.Tensor:
        devices.append(device)
        return empty(*sizes, device="cpu")

    monkeypatch.setattr(torch, "empty", empty_on)
    frame = gcodec.encode(np.ones(3, np.float32), "sign")
    for device in (0, None, "cpu"):
        gcodec.torch.decode(frame, device=device)
    assert devices == [0, "cpu", "cpu"]


def test_decoding_ignores_the_default_device() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    frame = gcodec.torch.encode(x, "sign")
    with torch.device("meta"):
        assert torch.equal(gcodec.torch.decode(frame, like=x), x)
        assert torch.equal(gcodec.torch.decode(frame), x)


@pytest.mark.parametrize("codec", ["lossless", "sign"])
def test_compiled_functions_do_not_trace_the_codec(codec: str) -> None:
    """Tracing a codec ended in an error about the kernels' loader, after many warnings."""

    def through(x: torch.Tensor) -> torch.Tensor:
        frame = gcodec.torch.encode(2 * x, codec)
        return gcodec.torch.decode(frame) + len(frame)

    torch._dynamo.reset()
    compiled = torch.compile(through, backend="eager")
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for density in (0.1, 0.5, 1.0):  # frames of several lengths, which are no constant
            mask = torch.rand(8, 64, generator=generator) < density
            x = torch.randn(8, 64, generator=generator) * mask
            assert torch.equal(compiled(x), through(x))


def test_coding_a_tensor_does_not_load_the_compiler_of_torch() -> None:
    code = """if True:
        import sys, torch, gcodec.torch
        gcodec.torch.decode(gcodec.torch.encode(torch.ones(3), "sign"))
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport gcodec.torch"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("needs PyTorch: pip install 'gcodec[torch]'")


# --- arguments ----------------------------------------------------------------------------------


def test_settings_pick_the_codec_of_a_parameter() -> None:
    chosen = settings("sign", policy={"a.*": "qsgd", "b.*": "raw"}, exclude=["c.*", "*.emb"])
    assert str(chosen.codec("a.w", (4, 4))) == "qsgd"
    assert str(chosen.codec("w", (4, 4))) == "sign"
    for name, shape in (
        *(("b.w", (4, 4)), ("c.w", (4, 4)), ("d.emb", (4, 4))),
        *(("w", (16,)), ("w", (1, 7)), ("w", ()), ("w", (0, 100))),
    ):
        assert chosen.codec(name, shape) is None
    assert str(settings(gcodec.Policy([{"codec": "sign"}])).codec("w", (8, 1))) == "sign"
    assert settings("sign", min_numel=0).codec("w", (0, 3)) is None


def test_invalid_settings_are_refused() -> None:
    for options, message in (
        ({"policy": {"a": "sign"}, "named": False}, "^policy: rules with names need model="),
        ({"exclude": "a", "named": False}, "^exclude: globs need model="),
        ({"decay": 2}, "^decay=2"),
        ({"seed": -1}, "^seed=-1"),
        ({"start_iter": -1}, "^start_iter=-1"),
        ({"min_numel": "x"}, "^min_numel='x'"),
    ):
        with pytest.raises(ParameterError, match=message):
            settings("sign", **options)
    with pytest.raises(ParameterError, match="nosuch"):
        settings("nosuch")
    assert settings("sign", policy=[{"ndim": 4, "codec": "raw"}], named=False)
    with pytest.raises(ParameterError, match="init_process_group"):
        gcodec.torch.TorchCommunicator()


# --- messages of a bucket -----------------------------------------------------------------------

NAMES = {"dense": (5,), "a": (8, 8), "b": (3, 7), "scalar": ()}


def parts(seed: int, spec: str = "topk:ratio=0.1") -> list[Part]:
    random = np.random.default_rng(seed)
    codec = gcodec.parse(spec)
    return [
        Part(
            name,
            np.asarray(random.standard_normal(shape), np.float32),
            codec if len(shape) > 1 else None,
        )
        for name, shape in NAMES.items()
    ]


def coders(spec: str = "topk:ratio=0.1") -> list[BucketCoder]:
    return [
        BucketCoder(gcodec.Feedback(spec, seed=3, rank=rank), 3, rank, Key(None))
        for rank in range(3)
    ]


def kept(coder: BucketCoder) -> dict[str, Any]:
    assert coder.feedback is not None
    return {key: value.tolist() for key, value in coder.feedback.state_dict().items()}


def test_all_ranks_get_the_same_mean() -> None:
    rank_coders = coders()
    buckets = [parts(rank) for rank in range(3)]
    means = [np.zeros(shape, np.float32) for shape in NAMES.values()]
    for bucket in buckets:
        for mean, part in zip(means, bucket, strict=True):
            if part.codec is None:
                mean += part.values * np.float32(1 / 3)
    pairs = list(zip(rank_coders, buckets, strict=True))
    messages = [coder.encode(bucket, 0) for coder, bucket in pairs]
    for coder, bucket in pairs:
        coder.average(bucket, messages)
    for bucket in buckets:
        for part, other, mean in zip(bucket, buckets[0], means, strict=True):
            assert np.array_equal(part.values, other.values)
            assert part.codec is not None or np.array_equal(part.values, mean)
    assert np.count_nonzero(buckets[0][1].values) in range(1, 19)


def test_rollback_restores_the_state() -> None:
    for spec in ("topk:ratio=0.1", "dct8:chunk=8,k=2"):
        coder, other = coders(spec)[0], coders(spec)[0]
        coder.encode(parts(9), 0)
        coder.rollback()
        assert kept(coder) == {}
        assert coder.encode(parts(1), 0) == other.encode(parts(1), 0)
        for one in (coder, other):
            one.average(parts(1), [one.encode(parts(2), 1)])
            one.commit()
        before = kept(coder)
        coder.encode(parts(3), 2)
        assert kept(coder) != before
        coder.rollback()
        assert kept(coder) == before
        assert coder.encode(parts(4), 2) == other.encode(parts(4), 2)


@pytest.mark.parametrize("value", [np.inf, np.nan, np.float32(3e38)])
@pytest.mark.parametrize("spec", ["topk:ratio=0.1", "mxnet-2bit"])
def test_nonfinite_gradients_are_sent_raw(value: float, spec: str) -> None:
    """Test NaN, Inf, and a gradient whose sum with the residual exceeds float32."""
    first, second, _ = coders(spec)
    for step, coder in enumerate((first, second)):
        bucket = parts(step, spec)
        bucket[1].values[0] = 2e38
        coder.average(bucket, [coder.encode(bucket, 0)])
        coder.commit()
    before = kept(first), kept(second)
    buckets = [parts(5, spec), parts(6, spec)]
    buckets[1][1].values[0, 7] = value
    pairs = list(zip((first, second), buckets, strict=True))
    messages = [coder.encode(bucket, 1) for coder, bucket in pairs]
    for coder, bucket in pairs:
        coder.average(bucket, messages)
    assert np.isfinite(buckets[0][1].values[0, 7]) == np.isfinite(value)
    for a, b in zip(*buckets, strict=True):
        assert np.array_equal(a.values, b.values, equal_nan=True)
    if not np.isfinite(value):  # the mean is not finite, so no rank keeps the step
        for coder in (first, second):
            coder.rollback()
        assert (kept(first), kept(second)) == before
        return
    for coder in (first, second):
        coder.commit()
    steps = [[state[f"step:{name}"] for name in "ab"] for state in (*before, kept(first))]
    assert steps[2] == [step + 1 for step in steps[0]]
    # The second rank sent the raw gradient of a, and keeps the residual for the next step.
    assert kept(second)["residual:a"] == before[1]["residual:a"]
    assert [kept(second)[f"step:{name}"] for name in "ab"] == [steps[1][0], steps[1][1] + 1]


def test_zero_gradient_sends_nothing_and_keeps_residual() -> None:
    coder = coders()[0]
    mine = parts(1)
    coder.average(mine, [coder.encode(mine, 0)])
    before = kept(coder)
    zeros = [part._replace(values=np.zeros_like(part.values)) for part in mine]
    message = coder.encode(zeros, 1)
    assert len(message) < 100
    coder.average(zeros, [message])
    assert kept(coder) == before
    assert not any(part.values.any() for part in zeros)


def shared_coders(spec: str = "minmax:bits=3", key: bytes | None = None) -> list[BucketCoder]:
    feedbacks = [gcodec.Feedback(spec, seed=3, rank=rank) for rank in range(2)]
    return [BucketCoder(each, 3, rank, Key(key), 200) for rank, each in enumerate(feedbacks)]


@pytest.mark.parametrize("key", [None, b"secret"])
def test_small_tensors_share_frames(key: bytes | None) -> None:
    pair = shared_coders(key=key)
    total: dict[str, Any] = dict.fromkeys(NAMES, 0.0)
    sent: dict[str, Any] = dict.fromkeys(NAMES, 0.0)
    for step in range(4):
        buckets = [parts(10 * step + rank, "minmax:bits=3") for rank in range(2)]
        for name, one, two in zip(NAMES, *buckets, strict=True):
            total[name] = total[name] + (one.values + two.values) / 2
        messages = [coder.encode(each, step) for coder, each in zip(pair, buckets, strict=True)]
        assert all(b"members" in message for message in messages)
        for coder, bucket in zip(pair, buckets, strict=True):
            coder.average(bucket, messages)
            coder.commit()
        for name, one, two in zip(NAMES, *buckets, strict=True):
            assert np.array_equal(one.values, two.values)
            sent[name] = sent[name] + one.values
    for name in NAMES:
        left = 0.0
        if f"step:{name}" in kept(pair[0]):
            assert kept(pair[0])[f"step:{name}"] == 4
            left = sum(np.array(kept(coder)[f"residual:{name}"]) for coder in pair) / 2
        assert np.allclose(sent[name] + left, total[name], atol=1e-5)


def test_tensors_with_nan_or_zeros_share_no_frame() -> None:
    pair = shared_coders()
    before = [kept(coder) for coder in pair]
    buckets = [parts(rank, "minmax:bits=3") for rank in range(2)]
    buckets[0][0].values[...] = 0
    buckets[1][1].values.reshape(-1)[3] = np.nan
    messages = [coder.encode(each, 0) for coder, each in zip(pair, buckets, strict=True)]
    for coder, bucket in zip(pair, buckets, strict=True):
        coder.average(bucket, messages)
        coder.rollback()
    assert np.isnan(buckets[0][1].values.reshape(-1)[3])
    for a, b in zip(*buckets, strict=True):
        assert np.array_equal(a.values, b.values, equal_nan=True)
    assert [kept(coder) for coder in pair] == before


def test_zero_gradient_shares_no_frame_and_keeps_residual() -> None:
    coder = shared_coders()[0]
    for step in range(2):
        mine, before = parts(step, "minmax:bits=3"), kept(coder)
        mine[1].values[...] *= 1 - step
        coder.average(mine, [coder.encode(mine, step)])
        coder.commit()
    assert not mine[1].values.any()
    after = kept(coder)
    assert after["residual:a"] == before["residual:a"]
    assert [after[f"step:{name}"] for name in "ab"] == [1, 2]


def test_two_tensors_below_the_bound_share_a_frame() -> None:
    """The coded ones have 64 and 21 elements."""
    spec, messages = "minmax:bits=3", []
    for below in (0, 21, 22, 64, 65):
        coder = BucketCoder(gcodec.Feedback(spec, seed=3), 3, 0, Key(None), below)
        messages.append(coder.encode(parts(1, spec), 0))
    assert messages[:4] == [messages[0]] * 4
    assert b"members" in messages[4]


def test_damaged_shared_frames_are_refused() -> None:
    coder = shared_coders()[0]
    message = coder.encode(parts(1, "minmax:bits=3"), 0)
    at = message.index(b'[["a"')
    for bad in (message[: at - 30], message[:-1], message + message[at:]):
        with pytest.raises(Corrupt, match=r"^the message of rank 1 is not of this bucket: "):
            coder.average(parts(1, "minmax:bits=3"), [message, bad])
    kinds = sum(part.codec is not None for part in parts(1, "minmax:bits=3"))
    with pytest.raises(Corrupt):
        coder.average(parts(1, "minmax:bits=3"), [b"\3" * kinds + message[kinds:][:40]])


def test_shared_frames_must_have_the_names_and_shapes_of_the_bucket() -> None:
    coder, spec = shared_coders()[0], "minmax:bits=3"
    mine, sender = parts(1, spec), BucketCoder(gcodec.Feedback(spec), 3, 1, Key(None), 200)
    turned = [
        part._replace(values=np.ascontiguousarray(part.values.T)) if part.name == "b" else part
        for part in mine
    ]
    message = sender.encode(turned, 0)
    with pytest.raises(Corrupt, match="a shared frame has 'b', which is not expected there"):
        coder.average(parts(1, spec), [coder.encode(mine, 0), message])
    coder.rollback()
    kinds = sum(part.codec is not None for part in mine)
    message = BucketCoder(gcodec.Feedback(spec), 3, 1, Key(None), 200).encode(mine, 0)
    frames = [
        dataclasses.replace(frame, name="other") if frame.name == "\\members" else frame
        for frame in gcodec.iter_frames(message[kinds:])
    ]
    wrong = message[:kinds] + b"".join(frame.to_bytes() for frame in frames)
    with pytest.raises(Corrupt, match="it lacks the frames that several tensors share"):
        coder.average(parts(1, spec), [coder.encode(mine, 0), wrong])


def test_shared_frames_of_other_sizes_take_no_memory() -> None:
    """The frame states 2^42 elements, of which it sends one."""
    coder, spec = shared_coders()[0], "minmax:bits=3"
    mine = parts(1, spec)
    message = BucketCoder(gcodec.Feedback(spec), 3, 1, Key(None), 200).encode(mine, 0)
    kinds = sum(part.codec is not None for part in mine)
    *others, _, _ = gcodec.iter_frames(message[kinds:])
    shape, text = (1 << 42,), np.frombuffer(b'[["a",[4398046511104]]]', np.uint8)
    one = gcodec.Frame.from_bytes(gcodec.encode(np.ones(1, np.float32), "topk:k=1,index=rice"))
    listed = gcodec.encode(text, "raw", name="\\members")
    vast = dataclasses.replace(one, shape=shape).to_bytes()
    hostile = message[:kinds] + b"".join(frame.to_bytes() for frame in others) + listed + vast
    with pytest.raises(Corrupt, match="a shared frame has 'a', which is not expected there"):
        coder.average(parts(1, spec), [coder.encode(mine, 0), hostile])


def test_tags_bind_messages_to_their_step_and_rank() -> None:
    pair, spec = shared_coders(key=b"secret"), "minmax:bits=3"
    messages = [coder.encode(parts(1, spec), 0) for coder in pair]
    for wrong in (messages[::-1], messages[:1] * 2):
        with pytest.raises(Corrupt, match="does not bear the tag of this key"):
            pair[0].average(parts(1, spec), wrong)
    for coder in pair:
        coder.average(parts(1, spec), messages)
        coder.commit()
    later = pair[0].encode(parts(2, spec), 1)
    with pytest.raises(Corrupt, match="does not bear the tag of this key"):
        pair[0].average(parts(2, spec), [later, messages[1]])


def test_seeds_without_feedback_depend_on_step_rank_and_name() -> None:
    pair = [BucketCoder(None, 3, rank, Key(None)) for rank in range(2)]
    mine = parts(1, "qsgd")
    texts = {coder.encode(mine, step) for coder in pair for step in range(2)}
    assert len(texts) == 4
    pair[0].average(mine, sorted(texts))


def test_error_of_a_codec_names_the_tensor() -> None:
    values = np.full((8, 8), 3e38, np.float32)
    part = Part("layer.weight", values, gcodec.parse("blockwise"))
    with pytest.raises(ParameterError, match=r"^tensor 'layer\.weight': x: must not exceed"):
        BucketCoder(None, 0, 0, Key(None)).encode([part], 0)


def test_residual_of_another_shape_is_refused() -> None:
    coder = coders()[0]
    assert coder.feedback is not None
    coder.feedback.compress("a", np.full(3, 3e38, np.float32))
    before, mine = kept(coder), parts(1)
    mine[1].values[...] = 3e38  # it is finite, whatever a sum with that residual would be
    allowed = r"^tensor 'a': grad\.shape=\(8, 8\): must be \(3,\) for 'a'"
    with pytest.raises(ParameterError, match=allowed):
        coder.encode(mine, 0)
    coder.rollback()
    assert kept(coder) == before


def test_loaded_state_drops_the_current_step() -> None:
    coder, other = coders()[:2]
    other.average(parts(1), [other.encode(parts(1), 0)])
    other.commit()
    coder.encode(parts(2), 0)
    coder.load_state_dict(other.state_dict())
    coder.rollback()
    assert kept(coder) == kept(other) != {}


@pytest.mark.parametrize("spec", ["raw", "sign", "powersgd:rank=1"])
@pytest.mark.parametrize(("first", "end", "frames"), [(0, 4, 3), (1, 3, 2), (0, 1, 1)])
def test_messages_have_at_most_the_stated_length(
    spec: str, first: int, end: int, frames: int
) -> None:
    """A key adds a tag to the message, and one to each frame."""
    bucket, bounds, lengths = parts(1, spec)[first:end], [], []
    for key in (None, b"secret"):
        coder = BucketCoder(None, 0, 0, Key(key))
        bounds.append(coder.max_nbytes(bucket) or 0)
        lengths.append(len(coder.encode(bucket, 0)))
        assert lengths[-1] <= bounds[-1]
    assert lengths[1] - lengths[0] == bounds[1] - bounds[0] == 16 * (1 + frames)


def test_messages_of_another_bucket_are_refused() -> None:
    coder = coders()[0]
    mine = parts(1)
    good = coder.encode(mine, 0)
    other = BucketCoder(None, 0, 1, Key(None)).encode(mine[:2], 0)
    renamed = BucketCoder(None, 0, 1, Key(None)).encode(
        [part._replace(name=part.name * 2) for part in mine], 0
    )
    turned = BucketCoder(None, 0, 1, Key(None)).encode(
        [part._replace(values=np.ascontiguousarray(part.values.T)) for part in mine], 0
    )
    damaged = b"", b"\1", b"\4\1" + good[2:], good[:2], good[:-1], good + good[2:]
    for bad in (*damaged, other, renamed, turned):
        with pytest.raises(Corrupt, match=r"^the message of rank 1 is not of this bucket: "):
            coder.average(parts(1), [good, bad])
    coded = mine[1:3]  # none of these is dense
    good = coder.encode(coded, 1)
    for bad in (b"", b"\1", good[:1]):
        with pytest.raises(Corrupt, match=r"^the message of rank 1 is not of this bucket: "):
            coder.average(parts(1)[1:3], [good, bad])
