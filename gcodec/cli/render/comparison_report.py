"""Show how far tensors are from one another: as a table, or as JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console

from gcodec.analysis.compare import Difference, together
from gcodec.cli import text
from gcodec.cli.comparison import Compared, Row
from gcodec.cli.document import number
from gcodec.cli.notes import note
from gcodec.cli.outcome import CheckFailed
from gcodec.cli.render.table import Column, print_line, print_table

_COLUMNS = [
    Column("tensor", left=True),
    Column("shape", left=True, rank=3),
    Column("dtype", left=True, rank=4),
    Column("values", rank=2),
    Column("rel. error"),
    Column("cosine"),
    Column("max error", rank=1),
    Column("same sign %", rank=1),
]


class ComparisonReport:
    """The report on two files.

    Parameters
    ----------
    compared : Compared
    bound : float or None
        The largest relative error that passes.
    """

    def __init__(self, compared: Compared, bound: float | None) -> None:
        self._compared, self._rows, self._bound = compared, list(compared.rows), bound
        self._total = together([row.found for row in self._rows if row.found is not None])

    def sort(self, order: str | None) -> None:
        """Order the rows by "size", "err" or "name"; None leaves them as they are."""
        if order == "name":
            self._rows.sort(key=lambda row: row.name)
        elif order == "size":
            self._rows.sort(key=lambda row: -row.size)
        elif order == "err":
            self._rows.sort(key=lambda row: -_error(row))

    def check(self) -> None:
        """Raise `CheckFailed` if tensors do not match, or errors pass the bound."""
        odd = [row for row in self._rows if row.problem]
        failed = [row for row in self._rows if row.found is not None and self._fails(row)]
        differing = [row for row in self._rows if row.unequal]
        told = []
        if odd:
            more = "" if len(odd) == 1 else f", and {len(odd) - 1} more that do not match"
            told.append(f"{odd[0].name!r}: {odd[0].problem}{more}")
        if differing:
            first = differing[0]
            more = "" if len(differing) == 1 else f", and {len(differing) - 1} more that differ"
            differ = f"{first.unequal:,} of {text.count(first.size, 'value')} differ"
            told.append(f"{first.name!r} is {first.a.dtype if first.a else ''}: {differ}{more}")
        if failed:
            worst = max(failed, key=lambda row: row.found.nmse if row.found else 0.0)
            assert worst.found is not None
            told.append(
                f"{text.count(len(failed), 'tensor')} above --max-err {self._bound:g}, the worst "
                f"{worst.name!r} with {worst.found.nmse:.3g}"
            )
        if told:
            raise CheckFailed("; ".join(told))

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return {
            "tensors": [self._row_document(row) for row in self._rows],
            "left_out": self._compared.left_out,
            "total": _difference_document(self._total),
            "integers": self._integers(),
        }

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the report; notes go to stderr unless `quiet`."""
        compared = self._compared
        sizes = [row.size for row in self._rows if row.is_compared]
        headline = [f"{compared.path_a.name} : {compared.path_b.name}"]
        headline += [text.count(len(sizes), "tensor"), text.count(sum(sizes), "value")]
        print_line(console, "   ".join(headline), "bold")
        shown = self._rows[:top]
        rows = [self._cells(row) for row in shown]
        if len(shown) < len(self._rows):
            rows.append([f"({len(self._rows) - len(shown)} more)", *[""] * (len(_COLUMNS) - 1)])
        marked = frozenset(i for i, row in enumerate(shown) if self._fails(row))
        total = ["total", "", "", f"{self._total.values:,}", *_numbers(self._total)]
        missing = print_table(console, _COLUMNS, rows, total, marked)
        if quiet:
            return
        if missing:
            note(f"{console.width} columns have no room for: {', '.join(missing)}")
        if names := compared.left_out:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            note(f"left out, as no frame holds their dtype: {', '.join(names[:3])}{more}")

    def _integers(self) -> dict[str, int]:
        """Return how many tensors of integers and booleans there are, and how many differ."""
        counts = [row.unequal for row in self._rows if row.unequal is not None]
        return {"tensors": len(counts), "unequal": sum(map(bool, counts))}

    def _fails(self, row: Row) -> bool:
        if row.unequal is not None:
            return row.unequal > 0
        if row.found is None:
            return True
        return self._bound is not None and not row.found.nmse <= self._bound

    def _cells(self, row: Row) -> list[str]:
        shapes = [text.shape(each.shape) for each in (row.a, row.b) if each is not None]
        dtypes = [each.dtype for each in (row.a, row.b) if each is not None]
        start = [row.name, *(" : ".join(dict.fromkeys(each)) for each in (shapes, dtypes))]
        if row.unequal is not None:
            verdict = f"{row.unequal:,} differ" if row.unequal else "equal"
            return [*start, f"{row.size:,}", verdict, "-", "-", "-"]
        if row.found is None:
            return [*start, f"{row.size:,}", row.problem or "unreadable", "-", "-", "-"]
        return [*start, f"{row.size:,}", *_numbers(row.found)]

    def _row_document(self, row: Row) -> dict[str, Any]:
        sides = {
            key: None if side is None else {"dtype": side.dtype, "shape": list(side.shape)}
            for key, side in (("a", row.a), ("b", row.b))
        }
        found: dict[str, Any] = {"name": row.name, **sides, "passes": not self._fails(row)}
        if row.unequal is not None:
            return found | {"values": row.size, "unequal": row.unequal}
        if row.found is None:
            return found | {"problem": row.problem or "unreadable"}
        return found | _difference_document(row.found)


def _error(row: Row) -> float:
    """Return what rows are sorted by: infinite for those that cannot be compared, or differ."""
    if row.unequal is not None:
        return math.inf if row.unequal else 0.0
    return math.inf if row.found is None else row.found.nmse


def _numbers(found: Difference) -> list[str]:
    cosine = "-" if math.isnan(found.cosine) else f"{found.cosine:.6f}"
    signs = text.percent(found.agreeing, found.signed)
    return [text.small(found.nmse), cosine, text.small(found.max_error), signs]


def _difference_document(found: Difference) -> dict[str, Any]:
    return {
        "values": found.values,
        "nmse": number(found.nmse),
        "cosine": number(found.cosine),
        "max_error": number(found.max_error),
        "sign_agreement": number(found.sign_agreement),
    }
