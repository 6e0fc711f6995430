"""View of ``gcodec compare``: a table, or JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gcodec.analysis.compare import Difference, TensorPair, together
from gcodec.cli.outcome import CheckFailed
from gcodec.cli.render import text
from gcodec.cli.render.output import Column, Table, View


class ComparisonView(View[TensorPair]):
    """The differences between two files.

    Parameters
    ----------
    path_a, path_b : pathlib.Path
        The files.
    pairs : list of TensorPair
        The tensors.
    skipped : list of str
        Names of tensors whose dtype no frame can store.
    max_nmse : float or None
        Largest nmse that passes.
    """

    def __init__(
        self,
        path_a: Path,
        path_b: Path,
        pairs: list[TensorPair],
        skipped: list[str],
        max_nmse: float | None,
    ) -> None:
        self._paths, self._skipped, self._max_nmse = (path_a, path_b), skipped, max_nmse
        self.rows = pairs
        self._total = together([p.difference for p in pairs if p.difference is not None])
        self.orders = {
            "name": lambda pair: pair.name,
            "size": lambda pair: -pair.size,
            "nmse": lambda pair: -pair.error,
        }

    def check(self) -> None:
        """Raise `CheckFailed` if tensors do not match, or an nmse exceeds the bound."""
        unmatched = [pair for pair in self.rows if pair.problem]
        differing = [pair for pair in self.rows if pair.unequal]
        inexact = [p for p in self.rows if p.difference is not None and self._fails(p)]
        messages = []
        if unmatched:
            first = unmatched[0]
            message = f"{first.name!r}: {first.problem}"
            messages.append(message + _others(unmatched, "do not match"))
        if differing:
            first = differing[0]
            dtype = first.a.dtype if first.a is not None else ""
            message = f"{first.name!r} is {dtype}: {first.unequal:,} of "
            message += f"{text.count(first.size, 'value')} differ"
            messages.append(message + _others(differing, "differ"))
        if inexact:
            worst = max(inexact, key=lambda pair: pair.error)
            messages.append(
                f"{text.count(len(inexact), 'tensor')} above --max-nmse {self._max_nmse:g}, the "
                f"worst {worst.name!r} with {worst.error:.3g}"
            )
        if messages:
            raise CheckFailed("; ".join(messages))

    def document(self) -> dict[str, Any]:
        """Return the comparison for a JSON document."""
        counts = [pair.unequal for pair in self.rows if pair.unequal is not None]
        return {
            "tensors": [self._pair_document(pair) for pair in self.rows],
            "left_out": self._skipped,
            "total": _difference_document(self._total),
            "integers": {"tensors": len(counts), "unequal": sum(map(bool, counts))},
        }

    def headline(self) -> str:
        """Return the line above the table."""
        sizes = [pair.size for pair in self.rows if pair.is_compared]
        parts = [" : ".join(text.titles(self._paths))]
        parts += [text.count(len(sizes), "tensor"), text.count(sum(sizes), "value")]
        return "   ".join(parts)

    def table(self, top: int | None = None) -> Table[TensorPair]:
        """Return the table, with the first pairs or all of them."""
        total = TensorPair("total", None, None, self._total)
        return Table(_COLUMNS, self.rows, total, self._fails, top)

    def notes(self) -> list[str]:
        """Return the tensors that are left out."""
        if not self._skipped:
            return []
        return [f"skipped, as no frame can store them: {text.listed(self._skipped, 3)}"]

    def _fails(self, pair: TensorPair) -> bool:
        if pair.unequal is not None:
            return pair.unequal > 0
        if pair.difference is None:
            return True
        return self._max_nmse is not None and not pair.difference.nmse <= self._max_nmse

    def _pair_document(self, pair: TensorPair) -> dict[str, Any]:
        sides = {
            key: None if entry is None else {"dtype": entry.dtype, "shape": list(entry.shape)}
            for key, entry in (("a", pair.a), ("b", pair.b))
        }
        body = {"name": pair.name, **sides, "passes": not self._fails(pair)}
        if pair.unequal is not None:
            return body | {"values": pair.size, "unequal": pair.unequal}
        if pair.difference is None:
            return body | {"problem": pair.problem or "unreadable"}
        return body | _difference_document(pair.difference)


def _others(pairs: list[TensorPair], verb: str) -> str:
    return "" if len(pairs) == 1 else f", and {len(pairs) - 1} more that {verb}"


def _difference_document(difference: Difference) -> dict[str, object]:
    return {
        "values": difference.values,
        "nmse": difference.nmse,
        "cosine": difference.cosine,
        "max_difference": difference.max_difference,
        "max_error": difference.max_difference,  # earlier name
        "sign_agreement": difference.sign_agreement,
    }


def _both(pair: TensorPair, shapes: bool) -> str:
    """Format the shapes or the dtypes of a pair: one text if they are equal."""
    entries = [entry for entry in (pair.a, pair.b) if entry is not None]
    texts = [text.shape(entry.shape) if shapes else entry.dtype for entry in entries]
    return " : ".join(dict.fromkeys(texts))


def _verdict(pair: TensorPair) -> str:
    if pair.difference is not None:
        return text.small(pair.difference.nmse)
    if pair.unequal is not None:
        return f"{pair.unequal:,} differ" if pair.unequal else "equal"
    return pair.problem or "unreadable"


def _cell(form: Callable[[Difference], str]) -> Callable[[TensorPair], str]:
    """Return the cells of a column that only floating-point tensors have."""
    return lambda pair: "-" if pair.difference is None else form(pair.difference)


_COLUMNS: list[Column[TensorPair]] = [
    Column("tensor", lambda pair: pair.name, left=True),
    Column("shape", lambda pair: _both(pair, shapes=True), left=True, rank=3),
    Column("dtype", lambda pair: _both(pair, shapes=False), left=True, rank=4),
    Column("values", lambda p: f"{p.difference.values if p.difference else p.size:,}", rank=2),
    Column("nmse", _verdict),
    Column("cosine", _cell(lambda d: text.cosine(d.cosine))),
    Column("max |b - a|", _cell(lambda d: text.small(d.max_difference)), rank=1),
    Column("same sign %", _cell(lambda d: text.percent(d.agreeing, d.signed)), rank=1),
]
