"""Test golden vectors on a device: every release writes and reads the same bytes."""

from __future__ import annotations

from pathlib import Path

from golden import vector

import gcodec
from gcodec.runtime.device import Device

FOLDER = Path(__file__).parent.parent / "golden" / "v1"
VECTORS = {path.stem: vector.read(path) for path in sorted(FOLDER.glob("*.txt"))}


def codec_of(fields: dict[str, str]) -> gcodec.Codec:
    key = fields.get("key", "").encode() or None
    return vector.codec_of(fields["spec"], vector.data(fields["frame"]), key)


THERE = {name: fields for name, fields in VECTORS.items() if codec_of(fields).on_device}


def test_golden(gpu: Device) -> None:
    for name in sorted(THERE):
        fields = THERE[name]
        dtype, shape = fields["dtype"], vector.shape_of(fields)
        # Without a gradient, the vector shows only how a message decodes.
        x = vector.floats(fields.get("grad", fields["decoded"]), dtype).reshape(shape)
        on_device, codec = gpu.to_device(x), codec_of(fields)
        seed, key = int(fields.get("seed", "0")), fields.get("key", "").encode() or None
        title, nonfinite = fields.get("name"), fields.get("nonfinite", "raise")
        if "grad" not in fields:
            written = vector.data(fields["frame"])
        elif "residual" in fields:
            residual = gpu.to_device(vector.floats(fields["residual"], "float32").reshape(shape))
            result = codec.pack(codec.quantize_residual(on_device, residual, seed=seed))
            after = vector.floats(fields["after"], "float32")
            assert vector.bits(gpu.to_host(residual)) == vector.bits(after), name
            written = gcodec.Frame(result.codec, dtype, shape, result, title, key).to_bytes()
        else:
            written = gcodec.encode(
                on_device,
                codec,
                seed=seed,
                name=title,
                key=key,
                nonfinite=nonfinite,  # type: ignore[arg-type]
            )
        if "seek" in fields:
            written = gcodec.Frame.from_bytes(written, key=key).without_seek().to_bytes()
            table = gcodec.Frame.from_bytes(written, key=key).with_seek(int(fields["seek"]))
            written = table.to_bytes()
        frame = vector.data(fields["frame"])
        assert written.hex(" ") == frame.hex(" "), name
        decoded = gpu.to_host(gcodec.decode(frame, like=on_device, key=key))
        assert vector.bits(decoded) == vector.bits(vector.floats(fields["decoded"], dtype)), name


def test_every_device_codec_has_vectors() -> None:
    names = {codec_of(fields).name for fields in THERE.values()}
    assert names >= {
        "raw",
        "sign",
        "mxnet-1bit",
        "mxnet-2bit",
        "minmax",
        "terngrad",
        "qsgd",
        "minifloat",
    }
