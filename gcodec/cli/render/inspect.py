"""The view of a dump by ``gcodec inspect``: a table, JSON, CSV and notes."""

from __future__ import annotations

import contextlib
import glob
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gcodec.advisor.choose import Target
from gcodec.analysis.settings import Settings
from gcodec.analysis.stats import SPAN
from gcodec.analysis.trials import Cost, Trial, total_cost
from gcodec.cli.render import text
from gcodec.cli.render.output import Column, Table, View, omission_notes
from gcodec.codec import Codec, registered
from gcodec.codecs import parse_encoder
from gcodec.errors import ParameterError
from gcodec.tensorfiles.entries import remedy
from gcodec.tensorfiles.structure import is_reserved
from gcodec.wire import primitives

if TYPE_CHECKING:  # SciPy is imported for dumps only
    from gcodec.analysis.candidates import Budget
    from gcodec.analysis.measure import DumpStats, GradientStats, TensorGroup, TensorStats

# Metadata of a training run that distinguish dumps; JSON contains all metadata.
_HEADLINE_KEYS = ("model", "kind", "step", "epoch", "rank", "loss", "optimizer")
_NAME_WIDTH = 60  # columns of a name in a list of names


class DumpRow(NamedTuple):
    """A row of the table of a dump.

    Attributes
    ----------
    group : TensorGroup
        Tensors of the row.
    trials : list of (int, Trial)
        Sizes of the tensors, and trials of the best codec within the budget.
    """

    group: TensorGroup
    trials: list[tuple[int, Trial]]

    @property
    def best(self) -> Cost | None:
        """Cost of the best codec; None if there is no budget, or no codec within it."""
        return total_cost(self.trials)


class DumpView(View[DumpRow]):
    """The view of a dump.

    Parameters
    ----------
    dump : DumpStats
        Measurements on the dump.
    settings : Settings
        Settings of the measurement.
    title : str
        Name of the file above the table; see `gcodec.cli.render.text.titles`.
    each : bool
        Whether every tensor has a row of its own.

    Attributes
    ----------
    dump, settings
        The parameters.
    total : DumpRow
        All tensors, each with its best codec.
    tensors : list of TensorStats
        All tensors, in the order of the rows after `sort`.
    """

    all_columns = "--width N or --json"

    def __init__(self, dump: DumpStats, settings: Settings, *, title: str, each: bool) -> None:
        self.path, self.title = dump.path, title
        self.dump = dump
        self.settings = settings
        self.rows = [self._row(group) for group in dump.groups(each=each)]
        self.total = DumpRow(dump.total, [trial for row in self.rows for trial in row.trials])
        self.tensors = dump.tensors
        self.orders = {
            "name": lambda row: row.group.name,
            "size": lambda row: -row.group.values,
            "bits": lambda row: _last_if_nan(self._cost(row).bits),
            "nmse": lambda row: _last_if_nan(self._cost(row).error),
        }

    @property
    def groups(self) -> list[TensorGroup]:
        """Tensors of each row."""
        return [row.group for row in self.rows]

    @property
    def _gradients(self) -> list[GradientStats]:
        return [tensor.gradient for tensor in self.tensors if tensor.gradient is not None]

    def sort(self, order: str | None) -> None:
        """Order the rows, and their tensors; None leaves them as they are."""
        super().sort(order)
        if order is not None:
            self.tensors = [member for group in self.groups for member in group.members]

    def _cost(self, row: DumpRow) -> Cost:
        """Return the cost that orders the rows: that of the first codec, or of the best one."""
        cost = total_cost(row.group.trials(0)) if self.settings.codecs else row.best
        return cost or Cost("", math.nan, math.nan)

    def _row(self, group: TensorGroup) -> DumpRow:
        return DumpRow(group, group.best(self.settings.budget))

    # --- table

    def headline(self) -> str:
        """Return the line above the table."""
        return "   ".join([self.title, *self.facts()])

    def facts(self) -> list[str]:
        """Return facts about the file as a whole."""
        dump = self.dump
        dtypes = sorted({tensor.entry.dtype for tensor in dump.tensors})
        return [
            dump.format,
            text.count(len(dump.tensors), "tensor"),
            text.count(sum(tensor.size for tensor in dump.tensors), "value"),
            *([", ".join(dtypes)] if dtypes else []),
            text.size(dump.nbytes),
            *(
                text.shorten(f"{key}={dump.metadata[key]}", 40)
                for key in _HEADLINE_KEYS
                if key in dump.metadata
            ),
        ]

    def table(self, top: int | None = None) -> Table[DumpRow]:
        """Return the table, with the first rows or all of them."""
        columns, rows = self._columns(), self.rows
        return Table(columns, rows, self.total, lambda row: bool(row.group.nonfinite), top)

    def _columns(self) -> list[Column[DumpRow]]:
        nonfinite_rank = 0 if any(group.nonfinite for group in self.groups) else 104
        columns: list[Column[DumpRow]] = [
            Column("tensor", _title, left=True),
            Column("shape", _shape, left=True, rank=102, in_total=False),
            Column("dtype", _dtype, left=True, rank=103, in_total=False),
            Column("values", lambda row: f"{row.group.values:,}", rank=41),
            Column("rms", lambda row: text.small(row.group.rms), rank=37),
            Column("max |x|", lambda row: text.small(row.group.max_abs), rank=101),
            Column("zero %", _zeros, rank=42),
            Column("NaN/Inf", _nonfinite, rank=nonfinite_rank),
            Column("distribution", _distribution, left=True, rank=40, in_total=False),
            Column("best fit beta    W2", _fit, left=True, rank=39, in_total=False),
            Column(f"entropy\nat {self.settings.error:g}", _entropy, rank=38),
        ]
        for place, codec in enumerate(self.settings.codecs):
            # The first codec always stays; the others outlast columns that nobody requested.
            columns.append(_codec_column(codec, place, min(place and 9 + place, 19)))
        if self.settings.budget is not None:
            budget = str(self.settings.budget).replace("≤", text.either("≤", "<="))
            columns += [
                Column(
                    f"best codec\n{budget}", lambda r: r.best.codec if r.best else "-", left=True
                ),
                Column("bits/v", lambda row: f"{row.best.bits:.2f}" if row.best else "-", rank=9),
                Column(
                    "nmse", lambda row: text.small(row.best.error) if row.best else "-", rank=20
                ),
                Column("ratio", _ratio, rank=43),
            ]
        return columns

    # --- JSON and CSV

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the dump."""
        settings, dump = self.settings, self.dump
        total, best = self.total.group, self.total.best
        return {
            "file": str(dump.path),
            "kind": "dump",
            "format": dump.format,
            "bytes": dump.nbytes,
            "metadata": dump.metadata,
            "sample": {"values_per_tensor": settings.max_values, "seed": settings.seed},
            "budget": None
            if (budget := settings.budget) is None
            # The last key is the earlier name of the first one.
            else {**budget._asdict(), "max_err": budget.max_nmse},
            "tensors": [self._tensor_document(tensor) for tensor in self.tensors],
            "omitted": dump.omitted,
            "groups": [
                {
                    "name": row.group.name,
                    "tensors": [member.entry.name for member in row.group.members],
                    **self._best_document(row.best),
                }
                for row in self.rows
            ],
            "total": {
                "values": total.values,
                "nonfinite": total.nonfinite,
                "entropy_bits": total.entropy,
                "codecs": [
                    {
                        "codec": str(codec),
                        **_cost_document(total_cost(total.trials(i))),
                        "values": _covered(total.trials(i)),
                    }
                    for i, codec in enumerate(settings.codecs)
                ],
                "best": None
                if best is None
                else {**_cost_document(best), "values": _covered(self.total.trials)},
            },
        }

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON document of each tensor."""
        file = str(self.path)
        return [{"file": file, **self._tensor_document(tensor)} for tensor in self.tensors]

    def _tensor_document(self, tensor: TensorStats) -> dict[str, object]:
        entry, gradient = tensor.entry, tensor.gradient
        body: dict[str, object] = {
            "name": entry.name,
            "shape": list(entry.shape),
            "dtype": entry.dtype,
            "values": tensor.size,
        }
        if gradient is None:
            facts = f"not a gradient: {entry.dtype}", remedy(entry.dtype)
            return body | {"note": "; ".join(filter(None, facts))}
        summary, entropy = gradient.summary, gradient.entropy
        return {
            **body,
            "measured": gradient.measured,
            "rms": summary.rms,
            "max_abs": summary.max_abs,
            "zeros": summary.zeros,
            "nonfinite": summary.nonfinite,
            "first_nonfinite": list(gradient.nonfinite_indices),
            "histogram": {"span_in_rms": [-SPAN, SPAN], "counts": list(gradient.histogram)},
            "fits": [
                {
                    "distribution": fit.name,
                    "method": fit.method,
                    "beta": fit.shape.beta,
                    "alpha": fit.shape.alpha,
                    "sigma": fit.shape.sigma,
                    "w2_in_rms": fit.w2,
                    "ks": fit.ks,
                }
                for fit in gradient.fits
            ],
            "entropy": {
                "nmse": entropy.error,
                "bits_per_value": entropy.bits,
                "step": entropy.step,
            },
            "codecs": [
                {"codec": str(codec), "problem": trial}
                if isinstance(trial, str)
                else {"codec": str(codec), "bytes": trial.nbytes, **_cost_document(trial)}
                for codec, trial in zip(self.settings.codecs, gradient.trials, strict=True)
            ],
            **self._best_document(self._row(tensor.group).best),
        }

    def _best_document(self, cost: Cost | None) -> dict[str, object]:
        if self.settings.budget is None:
            return {}
        return {"best": None if cost is None else {"codec": cost.codec, **_cost_document(cost)}}

    def records(self) -> list[dict[str, Any]]:
        """Return the flat record of each tensor, with the nearest fit."""
        return [{"file": str(self.path), **self._record(tensor)} for tensor in self.tensors]

    def _record(self, tensor: TensorStats) -> dict[str, object]:
        specs = [str(codec) for codec in self.settings.codecs]
        record = tensor.record(specs)
        if tensor.gradient is None:  # a cell without a measurement is empty
            record |= dict.fromkeys(("measured", "zeros", "nonfinite"))
        if self.settings.budget is not None:
            best = self._row(tensor.group).best
            record["best"] = None if best is None else best.codec
            for key, value in _cost_document(best).items():
                record[f"best_{key}"] = value
        return record

    # --- warnings and notes

    def warning(self) -> str:
        """Return the places of NaN and Inf; an empty text if there are none."""
        places = [f"{g.entry.name}[{i}]" for g in self._gradients for i in g.nonfinite_indices]
        if not places:
            return ""
        total = self.total.group.nonfinite
        return f"! {total:,} NaN or Inf: {text.listed(places, total=total)}"

    def warnings(self) -> list[tuple[str, str]]:
        """Return the places of NaN and Inf, and the values that codecs received there."""
        lines = [(warning, "red")] if (warning := self.warning()) else []
        if lines and (self.settings.codecs or self.settings.budget):
            lines.append(("  codecs were tried with 0 in their place (--nonfinite zero)", ""))
        return lines

    def notes(self) -> list[str]:
        """Return notes on samples, codecs that refuse tensors, the best codec, and a next step."""
        settings = self.settings
        notes = [*omission_notes(self.dump.omitted), *self._remedies(), *self.sample_notes()]
        notes += self._failure_notes()
        notes += self.overhead_notes()
        shares = self._best_shares()
        if shares and (share := max(shares.values())) < 1:
            best = max(shares, key=lambda spec: shares[spec])
            percent = min(round(100 * share), 99)
            notes.append(f"{best} is the best for {percent} % of the values")
        if settings.budget is not None:
            groups = [row.group for row in self.rows if row.best is None]
            if names := [group.name for group in groups if group.gradient_values]:
                listed = text.listed(names)
                covered = text.count(_covered(self.total.trials), "other value")
                total = f"; the total is that of {covered}" if self.total.trials else ""
                notes.append(f"no codec within {settings.budget} for {listed}{total}")
        notes += self.omitted_codecs()
        if suggestion := self.suggestion():
            notes.append(f"next: {suggestion}")
        return notes

    def omitted_codecs(self) -> list[str]:
        """Return notes on codecs of matrices that are no candidates, as they need feedback."""
        budget, asked = self.settings.budget, {codec.name for codec in self.settings.codecs}
        if budget is None or all(len(g.entry.shape) < 2 for g in self._gradients):
            return []
        nmse, bits = budget.max_nmse, budget.max_bits
        target = {"bits": bits} if nmse is None else {"nmse": nmse}
        notes = []
        for name, cls in registered().items():
            if cls.needs_feedback and name not in asked:
                with contextlib.suppress(ParameterError):  # the codec has no such target
                    spec = cls.from_mapping(target)
                    notes.append(f"{name} needs feedback and was not tried: -c {spec} shows it")
        return notes

    def _remedies(self) -> list[str]:
        """Return what to do about tensors whose dtype hides another one."""
        entries = [tensor.entry for tensor in self.tensors]
        names = text.gathered((remedy(e.dtype), e.name) for e in entries if remedy(e.dtype))
        return [f"{text.listed(same)}: {advice}" for advice, same in names.items()]

    def sample_notes(self) -> list[str]:
        """Return notes on the samples that were measured in place of whole tensors."""
        settings = self.settings
        sampled = [g for g in self._gradients if g.measured < g.entry.size]
        if not sampled:
            return []
        columns = "distribution, fit, entropy"
        if settings.codecs or settings.budget:
            columns += ", codecs"
        notes = [
            f"{text.count(len(sampled), 'tensor')} of more than {settings.max_values:,} values: "
            f"{columns} of a sample, {sum(g.measured for g in sampled):,} of "
            f"{sum(g.entry.size for g in sampled):,} values, seed {settings.seed}; the "
            "other columns of all values; --full measures all values"
        ]
        ranked = [str(codec) for codec in settings.codecs if hasattr(codec, "rank")]
        if ranked and any(len(g.entry.shape) > 1 for g in sampled):
            notes.append(
                f"{text.listed(ranked)}: the bits depend on how many rows there are, "
                "and only some were measured; --full measures all of them"
            )
        return notes

    def overhead_notes(self) -> list[str]:
        """Return a note on tensors of so few values that their frames are mostly header."""
        names = [
            row.group.name
            for row in self.rows
            if row.best is not None and row.best.bits >= row.group.raw_bits
        ]
        if not names:
            return []
        listed = text.listed([text.shorten(name, _NAME_WIDTH) for name in names])
        return [
            f"the values alone take no more bits than the smallest frame: {listed}; for few "
            "values, header and checksums outweigh the payload"
        ]

    def _failure_notes(self) -> list[str]:
        """Return notes on codecs that refuse tensors."""
        failures = text.gathered(
            ((gradient.entry.name, trial), str(codec))
            for gradient in self._gradients
            for codec, trial in zip(self.settings.codecs, gradient.trials, strict=True)
            if isinstance(trial, str)
        )
        notes = [
            f"{name}: no {' and no '.join(codecs)}: {problem}"
            for (name, problem), codecs in list(failures.items())[: text.MAX_NAMES]
        ]
        if hidden := len(failures) - len(notes):
            notes.append(f"and {hidden} more such tensors; --json lists all of them")
        if notes:
            notes.append("the total of a codec is that of the tensors that it accepts")
        return notes

    def _best_shares(self) -> dict[str, float]:
        """Return the share of all values for which each codec is the best."""
        sizes = Counter[str]()
        for size, trial in self.total.trials:
            sizes[str(trial.codec)] += size
        return {spec: n / self.total.group.gradient_values for spec, n in sizes.items()}

    def suggestion(self) -> str | None:
        """Return a command that encodes with the best codec, or that searches for it."""
        settings, total = self.settings, self.total.group
        if not total.gradient_values:
            return None
        path = text.argument(self.path)
        layers = [word for pattern in settings.layers for word in ("-L", pattern)]
        if settings.budget is None and not settings.codecs:
            words = ["gcodec", "inspect", path, "--max-nmse", f"{settings.error:g}"]
            return text.command(words + layers)
        spec = self._common_codec(total)
        if spec is None:
            return None
        words = ["gcodec", "encode", path, "-c", spec]
        if path == "-":  # stdin, from whose name no output follows
            words += ["-o", "OUT.gcf"]
        is_exact = not spec.startswith("auto:") and parse_encoder(spec).keeps_every_bit
        if total.nonfinite and not is_exact:
            words += ["--nonfinite", "zero"]
        if not is_exact or layers or self.dump.format != "safetensors":
            layers += [word for name in self._excluded_globs() for word in ("-L", f"!{name}")]
        return text.command(words + layers)

    def _common_codec(self, total: TensorGroup) -> str | None:
        """Return one codec: the best for most values, or the smallest one of the settings.

        If the best for most values exceeds the budget elsewhere, ``encode`` must choose.
        """
        if (budget := self.settings.budget) is not None:
            shares = self._best_shares()
            spec = max(shares, key=lambda spec: shares[spec], default=None)
            if spec is None or self._is_within(spec, budget):
                return spec
            return str(Target(*budget))
        useful = []
        for place in range(len(self.settings.codecs)):
            trials = total.trials(place)
            cost = total_cost(trials)
            # Useful codecs send more than noise, and refuse no tensor.
            if cost is not None and cost.error < 1 and len(trials) == len(total.gradients):
                useful.append(cost)
        return min(useful, key=lambda cost: cost.bits).codec if useful else None

    def _is_within(self, spec: str, budget: Budget) -> bool:
        """Return whether a codec meets the budget wherever another codec does."""
        codec = parse_encoder(spec)
        targets = (("nmse", budget.max_nmse), ("bits", budget.max_bits))
        is_aimed = any(b is not None and getattr(codec, key, None) == b for key, b in targets)
        for group in self.dump.groups(each=False):
            for place, gradient in enumerate(group.gradients):
                tried = {str(t.codec): budget.allows(t.bits, t.error) for t in gradient.candidates}
                # Only the best candidates of the first tensor of a group are tried on the others.
                is_untried = spec not in tried and place > 0
                is_within = tried.get(spec, False) or (is_untried and is_aimed)
                if gradient.entry.size and any(tried.values()) and not is_within:
                    return False
        return True

    def _excluded_globs(self) -> list[str]:
        """Return globs for tensors that frames cannot store: one for many of one last name."""
        stored = {_last_name(t) for t in self.tensors if _is_storable(t)}
        patterns = [
            glob.escape(t.entry.name)
            if (last := _last_name(t)) in stored or last == t.entry.name
            else f"*.{glob.escape(last)}"
            for t in self.tensors
            if not _is_storable(t)
        ]
        return list(dict.fromkeys(patterns))


def _last_if_nan(value: float) -> float:
    """Return a sort key that places large values first, and NaN last."""
    return math.inf if math.isnan(value) else -value


def _is_storable(tensor: TensorStats) -> bool:
    """Return whether ``encode`` accepts a tensor."""
    entry = tensor.entry
    return entry.dtype in primitives.DTYPE_CODES and not is_reserved(entry.name)


def _last_name(tensor: TensorStats) -> str:
    return tensor.entry.name.rpartition(".")[2]


def _cost_document(cost: Cost | Trial | None) -> dict[str, object]:
    if cost is None:
        return {"bits_per_value": None, "nmse": None}
    return {"bits_per_value": cost.bits, "nmse": cost.error}


def _covered(trials: list[tuple[int, Trial]]) -> int:
    """Return the number of values of the tensors that were tried, or have a best codec."""
    return sum(size for size, _ in trials)


# --- cells of the table of a dump


def _title(row: DumpRow) -> str:
    count = len(row.group.members)
    return text.repeated(row.group.name, count) if count else "total"


def _shape(row: DumpRow) -> str:
    return text.shape(row.group.members[0].entry.shape)


def _dtype(row: DumpRow) -> str:
    return row.group.members[0].entry.dtype


def _zeros(row: DumpRow) -> str:
    return text.percent(row.group.zeros, row.group.gradient_values)


def _nonfinite(row: DumpRow) -> str:
    return str(row.group.nonfinite) if row.group.gradients else "-"


def _distribution(row: DumpRow) -> str:
    if row.group.gradients:
        return text.sparkline(row.group.histogram)
    return f"not a gradient: {_dtype(row)}"


def _fit(row: DumpRow) -> str:
    fit = row.group.fit
    return "-" if fit is None else "{:7} {:4.2f}  {:5.3f}".format(*fit)


def _entropy(row: DumpRow) -> str:
    return "-" if math.isnan(row.group.entropy) else f"{row.group.entropy:.2f}"


def _ratio(row: DumpRow) -> str:
    ratio = None if row.best is None else text.ratio(row.group.raw_bits, row.best.bits)
    return "-" if ratio is None else f"{ratio:.1f}x"


def _codec_column(codec: Codec, place: int, rank: int) -> Column[DumpRow]:
    """Return the column of a codec of the settings."""
    name, _, parameters = str(codec).partition(":")
    lines = [name]
    for part in filter(None, parameters.split(",")):
        if len(lines) > 1 and len(lines[-1]) + len(part) < 18:
            lines[-1] += f",{part}"
        else:
            lines.append(part)

    def cell(row: DumpRow) -> str:
        cost = total_cost(row.group.trials(place))
        return "-" if cost is None else f"{cost.bits:.2f} {text.small(cost.error):>7}"

    return Column("\n".join([*lines, "bits/v    nmse"]), cell, rank=rank)
