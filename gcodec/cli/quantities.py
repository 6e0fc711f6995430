"""Options that are a number and a unit. Nothing heavy is imported here: help must be instant."""

from __future__ import annotations

import math
import re

import click

# Commas only where they part thousands: 12,5 is not 125.
_NUMBER = (
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*|(?=\.\d))(?:\.[\d_]*)?(?:[eE][+-]?\d{1,4})?)\s*"
)
_SPEED = re.compile(_NUMBER + r"([kKmMgGtT]?)(i?)(bit|b|B)(?:/s|ps)\s*", re.ASCII)
_TIME = re.compile(_NUMBER + r"(ns|us|µs|μs|ms|s|min|h)\s*", re.ASCII)
_COUNT = re.compile(_NUMBER + r"([kKmMbBgGtT]?)\s*", re.ASCII)
_PREFIXES = ("", "k", "m", "g", "t")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}


def speed(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Turn ``100Gbit/s`` or ``12.5GB/s`` into bytes a second."""
    if value is None:
        return None
    if found := _SPEED.fullmatch(value):
        number, prefix, binary, unit = found.groups()
        factor = float(1024 if binary else 1000) ** _PREFIXES.index(prefix.lower())
        bandwidth = _number(number) * factor / (1 if unit == "B" else 8)
        if 0 < bandwidth < math.inf:
            return bandwidth
    raise _refused(ctx, param, value, "a speed above 0 with its unit, 100Gbit/s or 12.5GB/s")


def duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Turn ``100ms`` or ``20us`` into seconds."""
    if found := _TIME.fullmatch(value):
        time = _number(found[1]) * _SECONDS[found[2].replace("µ", "u").replace("μ", "u")]
        if 0 <= time < math.inf:
            return time
    raise _refused(ctx, param, value, "a time from 0s on with its unit, such as 100ms or 20us")


def count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Turn ``1e9``, ``7B`` or ``125M`` into a whole number."""
    if value is None:
        return None
    if found := _COUNT.fullmatch(value):
        from decimal import Decimal

        number = Decimal(_digits(found[1])).scaleb(_POWERS[found[2].lower()])
        if 1 <= number < 2**63 and number == number.to_integral_value():
            return int(number)
    allowed = "a whole number from 1 to 2^63 - 1, such as 1e9, 7B or 125M"
    raise _refused(ctx, param, value, allowed)


def named_bits(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    """Turn each ``powersgd=0.25`` into a name and bits per value."""
    found = []
    for value in values:
        name, _, text = value.rpartition("=")
        number = re.fullmatch(_NUMBER, text, re.ASCII)
        bits = _number(number[1]) if number else math.nan
        if not name.strip() or not 0 <= bits <= 1e6:
            allowed = "a name and bits per value from 0 to 1e6, such as powersgd=0.25"
            raise _refused(ctx, param, value, allowed)
        found.append((name.strip(), bits))
    return tuple(found)


def _refused(
    ctx: click.Context, param: click.Parameter, value: str, allowed: str
) -> click.BadParameter:
    return click.BadParameter(f"{value!r}: must be {allowed}", ctx, param)


def _digits(text: str) -> str:
    return text.replace("_", "").replace(",", "")


def _number(text: str) -> float:
    return float(_digits(text))
