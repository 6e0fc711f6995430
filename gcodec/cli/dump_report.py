"""Show what was measured of a dump: as a table, or as JSON."""

from __future__ import annotations

import glob
import math
import shlex
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from gcodec.cli import text
from gcodec.cli.document import number
from gcodec.cli.measure import Contents, Fit, Measured, Task, squared_ratio
from gcodec.cli.notes import note
from gcodec.cli.table import Column, print_line, print_table
from gcodec.codec import Codec
from gcodec.gradients.stats import SPAN

# What a training run writes down that tells dumps apart at a glance; the rest is in the JSON.
_TELLING = ("model", "kind", "step", "epoch", "rank", "loss", "optimizer")
_MOST_NAMED = 8  # non-finite values that are named


class DumpReport:
    """The report on one dump.

    Parameters
    ----------
    contents : Contents
    task : Task
        What was measured.
    """

    def __init__(self, contents: Contents, task: Task) -> None:
        self._contents = contents
        self._task = task
        self._codecs = task.codecs
        self._tensors = contents.tensors

    def sort(self, order: str | None) -> None:
        """Order the tensors by "size", "bits", "err" or "name"; None leaves them as they are."""
        if order == "name":
            self._tensors.sort(key=lambda tensor: tensor.entry.name)
        elif order == "size":
            self._tensors.sort(key=lambda tensor: -tensor.size)
        elif order is not None:
            self._tensors.sort(key=lambda tensor: _first_fit(tensor, order), reverse=True)

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON document."""
        contents = self._contents
        totals = [self._total_fit(i) for i in range(len(self._codecs))]
        return {
            "file": str(contents.path),
            "kind": "dump",
            "format": contents.format,
            "bytes": contents.nbytes,
            "metadata": contents.metadata,
            "tensors": [self._tensor_document(tensor) for tensor in self._tensors],
            "total": {
                "values": sum(tensor.size for tensor in self._tensors),
                "nonfinite": sum(tensor.nonfinite for tensor in self._tensors),
                "codecs": [
                    {"codec": str(codec), **_fit_document(bits, error)}
                    for codec, (bits, error) in zip(self._codecs, totals, strict=True)
                ],
            },
        }

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the report; notes go to stderr unless `quiet`."""
        print_line(console, self._headline(), "bold")
        rows = [self._row(tensor) for tensor in self._tensors[:top]]
        left_over = len(self._tensors) - len(rows)
        marked = frozenset(i for i in range(len(rows)) if self._tensors[i].nonfinite)
        columns = self._columns()
        if left_over:
            rows.append([f"({left_over} more)", *[""] * (len(columns) - 1)])
        missing = print_table(console, columns, rows, self._total_row(), marked)
        self._show_nonfinite(console)
        if quiet:
            return
        if missing:
            note(f"{console.width} columns have no room for: {', '.join(missing)}")
        self._note_samples()
        self._note_failures()
        if suggestion := self._suggestion():
            note(f"next: {suggestion}")

    def _headline(self) -> str:
        contents = self._contents
        dtypes = sorted({tensor.entry.dtype for tensor in self._tensors})
        told = [f"{key}={contents.metadata[key]}" for key in _TELLING if key in contents.metadata]
        return "   ".join(
            [
                contents.path.name,
                contents.format,
                text.count(len(self._tensors), "tensor"),
                text.count(sum(tensor.size for tensor in self._tensors), "value"),
                *([", ".join(dtypes)] if dtypes else []),
                text.size(contents.nbytes),
                *(text.shorten(part, 40) for part in told),
            ]
        )

    def _columns(self) -> list[Column]:
        has_nonfinite = any(tensor.nonfinite for tensor in self._tensors)
        columns = [
            Column("tensor", left=True),
            Column("shape", left=True, rank=102),
            Column("dtype", left=True, rank=103),
            Column("values", rank=39),
            Column("rms"),
            Column("max |x|", rank=101),
            Column("zero %", rank=40),
            Column("NaN/Inf", rank=0 if has_nonfinite else 104),
            Column("distribution", left=True, rank=20),
            Column("best fit beta    W2", left=True, rank=30),
        ]
        for place, codec in enumerate(self._codecs):
            # The first stays whatever happens, the second longer than most, the others not.
            rank = (0, 10)[place] if place < 2 else 48 + min(place, 50)
            columns.append(Column(_codec_header(codec), rank=rank))
        return columns

    def _row(self, tensor: Measured) -> list[str]:
        entry, summary = tensor.entry, tensor.summary
        start = [entry.name, text.shape(entry.shape), entry.dtype, f"{tensor.size:,}"]
        if summary is None:
            why = f"not a gradient: {entry.dtype}"
            return [*start, "-", "-", "-", "-", why, "-", *["-"] * len(self._codecs)]
        return [
            *start,
            text.small(summary.rms),
            text.small(summary.max_abs),
            text.percent(summary.zeros, summary.size),
            str(tensor.nonfinite),
            text.sparkline(summary.histogram),
            _shape_cell(tensor),
            *map(_fit_cell, tensor.fits),
        ]

    def _total_row(self) -> list[str]:
        measured = [(t.size, t.summary) for t in self._tensors if t.summary is not None]
        values = sum(count for count, _ in measured)
        zeros = sum(
            count * summary.zeros / summary.size for count, summary in measured if summary.size
        )
        largest = max(
            (s.max_abs for _, s in measured if not math.isnan(s.max_abs)), default=math.nan
        )
        rms = (
            _joint((n, s.rms) for n, s in measured if not math.isnan(s.rms))
            if values
            else math.nan
        )
        fits = [self._total_fit(i) for i in range(len(self._codecs))]
        return [
            "total",
            "",
            "",
            f"{sum(tensor.size for tensor in self._tensors):,}",
            text.small(rms),
            text.small(largest),
            text.percent(round(zeros), values),
            str(sum(tensor.nonfinite for tensor in self._tensors)),
            "",
            "",
            *(_cell(bits, error) for bits, error in fits),
        ]

    def _total_fit(self, place: int) -> tuple[float, float]:
        """Return bits per value and error of a codec over all tensors that it could encode."""
        fitted = [
            (tensor.size, fit)
            for tensor in self._tensors
            if tensor.size and tensor.fits and isinstance(fit := tensor.fits[place], Fit)
        ]
        values = sum(size for size, _ in fitted)
        if not values:
            return math.nan, math.nan
        bits = sum(size * fit.bits for size, fit in fitted) / values
        error = _joint((size, fit.rms_error) for size, fit in fitted)
        return bits, squared_ratio(error, _joint((size, fit.rms) for size, fit in fitted))

    def _show_nonfinite(self, console: Console) -> None:
        wrong = [tensor for tensor in self._tensors if tensor.nonfinite]
        if not wrong:
            return
        names = [f"{t.entry.name}[{place}]" for t in wrong for place in t.places]
        total = sum(tensor.nonfinite for tensor in wrong)
        shown = names[:_MOST_NAMED]
        more = f" and {total - len(shown):,} more" if total > len(shown) else ""
        print_line(console, f"! {total:,} NaN or Inf: {', '.join(shown)}{more}", "red")
        print_line(console, "  codecs were tried with 0 in their place (--nonfinite zero)")

    def _note_samples(self) -> None:
        sampled = [t for t in self._tensors if t.summary is not None and t.summary.size < t.size]
        if sampled:
            most = max(t.summary.size for t in sampled if t.summary is not None)
            note(
                f"{text.count(len(sampled), 'tensor')} of more than {most:,} values measured on "
                f"a sample of that many; --full measures all"
            )

    def _note_failures(self) -> None:
        failures: dict[tuple[str, str], list[str]] = {}
        for tensor in self._tensors:
            for codec, fit in zip(self._codecs, tensor.fits, strict=False):
                if isinstance(fit, str):
                    failures.setdefault((tensor.entry.name, fit), []).append(str(codec))
        for (name, problem), codecs in list(failures.items())[:_MOST_NAMED]:
            note(f"{name}: no {' and no '.join(codecs)}: {problem}")
        if len(failures) > _MOST_NAMED:
            note(f"and {len(failures) - _MOST_NAMED} more such tensors; --json lists all")

    def _suggestion(self) -> str | None:
        """Return a command: the smallest codec that sends something rather than only noise."""
        fits = [
            (self._total_fit(i), codec)
            for i, codec in enumerate(self._codecs)
            if not any(t.fits and isinstance(t.fits[i], str) for t in self._tensors)
        ]
        useful = [(bits, codec) for (bits, error), codec in fits if error < 1]
        if not useful:
            return None
        spec = str(min(useful, key=lambda pair: pair[0])[1])
        words = ["gcodec", "encode", str(self._contents.path), "-c", spec]
        if any(tensor.nonfinite for tensor in self._tensors):
            words += ["--nonfinite", "zero"]
        for pattern in (*self._task.layers, *(f"!{name}" for name in self._unwanted())):
            words += ["-L", pattern]
        return shlex.join(words)

    def _unwanted(self) -> list[str]:
        """Return globs for what is no gradient: one for many of the same last name."""
        gradients = {_last_name(t) for t in self._tensors if t.summary is not None}
        patterns = [
            glob.escape(t.entry.name)
            if (last := _last_name(t)) in gradients or last == t.entry.name
            else f"*.{glob.escape(last)}"
            for t in self._tensors
            if t.summary is None
        ]
        return list(dict.fromkeys(patterns))

    def _tensor_document(self, tensor: Measured) -> dict[str, Any]:
        entry, summary = tensor.entry, tensor.summary
        document: dict[str, Any] = {
            "name": entry.name,
            "shape": list(entry.shape),
            "dtype": entry.dtype,
            "values": tensor.size,
        }
        if summary is None:
            return document | {"note": f"not a gradient: {entry.dtype}"}
        return document | {
            "measured": summary.size,
            "rms": number(summary.rms),
            "max_abs": number(summary.max_abs),
            "zeros": summary.zeros,
            "nonfinite": tensor.nonfinite,
            "first_nonfinite": list(tensor.places),
            "histogram": {"span_in_rms": [-SPAN, SPAN], "counts": list(summary.histogram)},
            "fits": [
                {
                    "distribution": fit.name,
                    "method": fit.method,
                    "beta": number(fit.shape.beta),
                    "alpha": number(fit.shape.alpha),
                    "sigma": number(fit.shape.sigma),
                    "w2_in_rms": number(fit.w2),
                    "ks": number(fit.ks),
                }
                for fit in tensor.shapes
            ],
            "codecs": [
                {"codec": str(codec), "problem": fit}
                if isinstance(fit, str)
                else {
                    "codec": str(codec),
                    "bytes": fit.nbytes,
                    **_fit_document(fit.bits, fit.error),
                }
                for codec, fit in zip(self._codecs, tensor.fits, strict=True)
            ],
        }


def _first_fit(tensor: Measured, order: str) -> float:
    fit = tensor.fits[0] if tensor.fits else ""
    if isinstance(fit, str):
        return -math.inf
    value = fit.bits if order == "bits" else fit.error
    return -math.inf if math.isnan(value) else value


def _shape_cell(tensor: Measured) -> str:
    if not tensor.shapes:
        return "-"
    best = tensor.shapes[0]
    return f"{best.name:7} {best.shape.beta:4.2f}  {best.w2:5.3f}"


def _last_name(tensor: Measured) -> str:
    return tensor.entry.name.rpartition(".")[2]


def _joint(parts: Iterable[tuple[int, float]]) -> float:
    """Return the root mean square of tensors of these sizes and root mean squares."""
    known = list(parts)
    # hypot scales, so that it does not overflow where squares would.
    root = math.hypot(*(math.sqrt(size) * rms for size, rms in known))
    return root / math.sqrt(sum(size for size, _ in known) or 1)


def _codec_header(codec: Codec) -> str:
    name, _, parameters = str(codec).partition(":")
    lines = [name]
    for part in filter(None, parameters.split(",")):
        if len(lines) > 1 and len(lines[-1]) + len(part) < 18:
            lines[-1] += f",{part}"
        else:
            lines.append(part)
    return "\n".join([*lines, "bits/v    nmse"])


def _fit_cell(fit: Fit | str) -> str:
    return "-" if isinstance(fit, str) else _cell(fit.bits, fit.error)


def _cell(bits: float, error: float) -> str:
    return "-" if math.isnan(bits) else f"{bits:.2f} {text.small(error):>7}"


def _fit_document(bits: float, error: float) -> dict[str, Any]:
    return {"bits_per_value": number(bits), "nmse": number(error)}
