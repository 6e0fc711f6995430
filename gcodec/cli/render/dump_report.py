"""The report on one dump: its table, and notes on what to know and what to do next."""

from __future__ import annotations

import glob
import math
import shlex
from typing import Any

from rich.console import Console

from gcodec.cli import text
from gcodec.cli.measure import Contents, Measured, Task
from gcodec.cli.notes import note
from gcodec.cli.render import dump_document, dump_table
from gcodec.cli.render.table import Grid, print_line, print_table
from gcodec.cli.rows import Row, rows_of, together

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
    each : bool
        Whether every tensor has a row of its own.
    """

    def __init__(self, contents: Contents, task: Task, *, each: bool) -> None:
        self.path = contents.path
        self.contents = contents
        self.task = task
        self.rows = rows_of(contents.tensors, each=each)
        self.tensors = contents.tensors

    def sort(self, order: str | None) -> None:
        """Order the rows by "size", "bits", "err" or "name"; None leaves them as they are."""
        if order == "name":
            self.rows.sort(key=lambda row: row.name)
        elif order == "size":
            self.rows.sort(key=lambda row: -row.values)
        elif order is not None:
            self.rows.sort(key=lambda row: self._cost(row, order), reverse=True)
        if order is not None:
            self.tensors = [member for row in self.rows for member in row.members]

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return dump_document.document(self.contents, self.rows, self.tensors, self.task)

    def documents(self) -> list[dict[str, Any]]:
        """Return a document for each tensor."""
        return [dump_document.tensor_document(t, self.task) for t in self.tensors]

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each tensor."""
        return [dump_document.record(tensor, self.task) for tensor in self.tensors]

    def grid(self, top: int | None) -> Grid:
        """Return the table, of the first rows only or of all."""
        task = self.task
        has_nonfinite = any(row.nonfinite for row in self.rows)
        columns = dump_table.columns(task, has_nonfinite=has_nonfinite)
        shown = self.rows[:top]
        cells = [dump_table.cells(row, task) for row in shown]
        if left_over := len(self.rows) - len(shown):
            cells.append([f"({left_over} more)", *[""] * (len(columns) - 1)])
        marked = frozenset(i for i, row in enumerate(shown) if row.nonfinite)
        return Grid(columns, cells, dump_table.total_cells(self.rows, task), marked)

    def headline(self) -> str:
        """Return the line above the table."""
        return "   ".join([self.path.name, *self.facts()])

    def facts(self) -> list[str]:
        """Return what is known of the file as a whole."""
        contents = self.contents
        dtypes = sorted({tensor.entry.dtype for tensor in contents.tensors})
        told = [f"{key}={contents.metadata[key]}" for key in _TELLING if key in contents.metadata]
        return [
            contents.format,
            text.count(len(contents.tensors), "tensor"),
            text.count(sum(tensor.size for tensor in contents.tensors), "value"),
            *([", ".join(dtypes)] if dtypes else []),
            text.size(contents.nbytes),
            *(text.shorten(part, 40) for part in told),
        ]

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the report; notes go to stderr unless `quiet`."""
        print_line(console, self.headline(), "bold")
        missing = print_table(console, *self.grid(top))
        self._show_nonfinite(console)
        if quiet:
            return
        if missing:
            note(f"{console.width} columns have no room for: {', '.join(missing)}")
        self.show_notes()
        if suggestion := self.suggestion():
            note(f"next: {suggestion}")

    def show_notes(self) -> None:
        """Print on what the numbers rest, and what could not be found."""
        if samples := self.about_samples():
            note(samples)
        self._note_failures()
        shares = self._shares()
        if shares and (share := max(shares.values())) < 1:
            best = max(shares, key=lambda spec: shares[spec])
            note(f"{best} is the best for {100 * share:.0f} % of the values")
        without = [row for row in self.rows if self._has_no_best(row)]
        if without and self.task.budget is not None:
            names = ", ".join(row.name for row in without[:_MOST_NAMED])
            more = f" and {len(without) - _MOST_NAMED} more" if len(without) > _MOST_NAMED else ""
            note(f"no codec within {self.task.budget} for {names}{more}")

    def about_samples(self) -> str:
        """Say on what samples the numbers rest; nothing where there are none."""
        sampled = [m for m in self.tensors if m.sampled is not None and m.sampled.size < m.size]
        if not sampled:
            return ""
        values = sum(m.sampled.size for m in sampled if m.sampled is not None)
        kept = "distribution, fit, entropy"
        if self.task.codecs or self.task.budget:
            kept += ", codecs"
        return (
            f"{text.count(len(sampled), 'tensor')} of more than {self.task.most:,} values: {kept} "
            f"of a sample, {values:,} of {sum(m.size for m in sampled):,} values, seed "
            f"{self.task.seed}; the rest of all values; --full takes all for everything"
        )

    def suggestion(self) -> str | None:
        """Return a command: to encode with what was found best, or to search for that."""
        task = self.task
        everything = Row(self.tensors) if self.rows else None
        if everything is None or not everything.gradient_values:
            return None
        path = str(self.contents.path)
        if task.budget is None and not task.codecs:
            words = ["gcodec", "inspect", path, "--max-err", f"{task.error:g}"]
            return shlex.join(words + self._layers())
        spec = self._one_for_all(everything)
        if spec is None:
            return None
        words = ["gcodec", "encode", path, "-c", spec]
        if everything.nonfinite:
            words += ["--nonfinite", "zero"]
        unwanted = [word for name in self._unwanted() for word in ("-L", f"!{name}")]
        return shlex.join(words + self._layers() + unwanted)

    def _shares(self) -> dict[str, float]:
        """Return of what share of all values a codec is the best, for those that are of any."""
        shares: dict[str, float] = {}
        budget = self.task.budget
        if budget is None:
            return shares
        for row in self.rows:
            for size, trial in row.best(budget):
                spec = str(trial.codec)
                shares[spec] = shares.get(spec, 0.0) + size
        values = sum(row.gradient_values for row in self.rows)
        return {spec: size / values for spec, size in shares.items()}

    def _one_for_all(self, everything: Row) -> str | None:
        """Return one codec: the best for most values, or the smallest that was asked for."""
        task = self.task
        if task.budget is not None:
            shares = self._shares()
            return max(shares, key=lambda spec: shares[spec], default=None)
        useful = []
        for place in range(len(task.codecs)):
            pairs = everything.trials(place)
            cost = together(pairs)
            # One that sends something rather than only noise, and refuses nothing.
            if cost is not None and cost.error < 1 and len(pairs) == len(everything.gradients):
                useful.append(cost)
        return min(useful, key=lambda cost: cost.bits).codec if useful else None

    def _cost(self, row: Row, order: str) -> float:
        task = self.task
        pairs = row.trials(0) if task.codecs else row.best(task.budget) if task.budget else []
        cost = together(pairs)
        value = math.nan if cost is None else cost.bits if order == "bits" else cost.error
        return -math.inf if math.isnan(value) else value

    def _has_no_best(self, row: Row) -> bool:
        budget = self.task.budget
        return budget is not None and row.gradient_values > 0 and not row.best(budget)

    def about_nonfinite(self) -> str:
        """Say where NaN and Inf are; nothing where there are none."""
        wrong = [tensor for tensor in self.tensors if tensor.nonfinite]
        if not wrong:
            return ""
        names = [f"{t.entry.name}[{place}]" for t in wrong for place in t.places]
        total = sum(tensor.nonfinite for tensor in wrong)
        shown = names[:_MOST_NAMED]
        more = f" and {total - len(shown):,} more" if total > len(shown) else ""
        return f"! {total:,} NaN or Inf: {', '.join(shown)}{more}"

    def _show_nonfinite(self, console: Console) -> None:
        if not (about := self.about_nonfinite()):
            return
        print_line(console, about, "red")
        if self.task.codecs or self.task.budget:
            print_line(console, "  codecs were tried with 0 in their place (--nonfinite zero)")

    def _note_failures(self) -> None:
        failures: dict[tuple[str, str], list[str]] = {}
        for tensor in self.tensors:
            trials = tensor.sampled.trials if tensor.sampled is not None else ()
            for codec, trial in zip(self.task.codecs, trials, strict=False):
                if isinstance(trial, str):
                    failures.setdefault((tensor.entry.name, trial), []).append(str(codec))
        for (name, problem), codecs in list(failures.items())[:_MOST_NAMED]:
            note(f"{name}: no {' and no '.join(codecs)}: {problem}")
        if len(failures) > _MOST_NAMED:
            note(f"and {len(failures) - _MOST_NAMED} more such tensors; --json lists all")

    def _layers(self) -> list[str]:
        return [word for glob_ in self.task.layers for word in ("-L", glob_)]

    def _unwanted(self) -> list[str]:
        """Return globs for what is no gradient: one for many of the same last name."""
        tensors = self.tensors
        gradients = {_last_name(t) for t in tensors if t.summary is not None}
        patterns = [
            glob.escape(t.entry.name)
            if (last := _last_name(t)) in gradients or last == t.entry.name
            else f"*.{glob.escape(last)}"
            for t in tensors
            if t.summary is None
        ]
        return list(dict.fromkeys(patterns))


def _last_name(tensor: Measured) -> str:
    return tensor.entry.name.rpartition(".")[2]
