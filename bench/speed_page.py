"""The tables of `docs/speed.md`, from what ``python -m bench`` has measured."""

from __future__ import annotations

from collections.abc import Mapping

from bench.codec_rows import SPECS
from bench.kernel_rows import Times
from bench.sum_rows import COUNT
from bench.sum_rows import SPECS as SUMMED


def _digits(number: float) -> str:
    """Return a number with two digits, or all of a larger one."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def codec_lines(measured: Mapping[str, Times]) -> str:
    """Return the table of encoding and error feedback, with times in those of a memcpy."""
    lines = [
        "| codec | `encode` | `compress` | ÷ `encode` | ÷ stream | ÷ cached "
        "| `quantize_residual` ÷ `encode` |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for spec in SPECS:
        calls = "encode", "Feedback.compress", "quantize_residual"
        encode, compress, update = (measured[f"{spec}: {call}"] for call in calls)
        quotients = compress.bases, compress.twins, compress.parts, update.bases
        numbers = encode.copies, compress.copies, *quotients
        lines.append(f"| `{spec}` | {' | '.join(map(_digits, numbers))} |")
    return "\n".join(lines)


def decoding_lines(measured: Mapping[str, Times]) -> str:
    """Return the table of decoding, with times in those of a memcpy."""
    lines = [
        "| codec | `decode(out=)` | `decode_add` | ÷ `decode(out=)` | ÷ stream | ÷ cached |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for spec in SPECS:
        decode, add = (measured[f"{spec}: {call}"] for call in ("decode(out=)", "decode_add"))
        numbers = decode.copies, add.copies, add.bases, add.twins, add.parts
        lines.append(f"| `{spec}` | {' | '.join(map(_digits, numbers))} |")
    return "\n".join(lines)


def half_lines(measured: Mapping[str, Times]) -> str:
    """Return the table of gradients of 16 bits, with times in those of a memcpy."""
    lines = ["| codec | `encode` | `compress` | ÷ `encode` |", "|---|--:|--:|--:|"]
    for spec in SPECS:
        encode, compress = (
            measured[f"{spec}: {call}"] for call in ("encode", "Feedback.compress")
        )
        numbers = encode.copies, compress.copies, compress.bases
        lines.append(f"| `{spec}` | {' | '.join(map(_digits, numbers))} |")
    return "\n".join(lines)


def sum_lines(measured: Mapping[str, Times]) -> str:
    """Return the table of sums of frames."""
    lines = [
        f"| codec | `decode_sum` of {COUNT} ÷ `decode_add` | ÷ cached |",
        "|---|--:|--:|",
    ]
    for spec in SUMMED:
        times = measured[f"{spec}: decode_sum of {COUNT}"]
        lines.append(f"| `{spec}` | {_digits(times.twins)} | {_digits(times.parts)} |")
    return "\n".join(lines)
