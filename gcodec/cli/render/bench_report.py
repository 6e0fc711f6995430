"""Show what ``gcodec bench`` found: as a table, JSON, CSV or Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gcodec.cli import text
from gcodec.cli.document import number, print_document
from gcodec.cli.host import processor, version_of
from gcodec.cli.notes import note
from gcodec.cli.render.dissection_report import TOLD
from gcodec.cli.render.table import (
    Column,
    print_csv,
    print_line,
    print_markdown,
    print_table,
    stdout,
)
from gcodec.cli.timing import Tensor, Timed
from gcodec.runtime.pool import thread_count


class BenchReport:
    """The report on one run.

    Parameters
    ----------
    source : str
    tensors : sequence of Tensor
    timed : sequence of Timed
    rounds : int
    notes : list of str
        What the reader must know of it.
    """

    def __init__(
        self,
        source: str,
        tensors: Sequence[Tensor],
        timed: Sequence[Timed],
        rounds: int,
        notes: list[str],
    ) -> None:
        self._source = source
        self._tensors = tensors
        self._timed = timed
        self._rounds = rounds
        self._notes = notes
        found = {kind for one in timed for kind, nbits in one.split.items() if nbits}
        self._kinds = [kind for kind in TOLD if kind in found] + sorted(found - {*TOLD})

    def show(self, form: str | None, quiet: bool) -> None:
        """Print it in a form, "json", "csv" or "markdown", or else as a table for people."""
        columns = self._columns()
        if form == "json":
            print_document("bench", self._document())
        elif form == "csv":
            rows = [self._numbers(one) for one in self._timed]
            print_csv(list(rows[0]), [list(row.values()) for row in rows])
        elif form == "markdown":
            print_markdown(columns, [self._row(one) for one in self._timed])
        else:
            console = stdout()
            print_line(console, self._headline(), "bold")
            missing = print_table(console, columns, [self._row(one) for one in self._timed])
            for one in self._timed:
                if one.doubt is not None:
                    print_line(
                        console, f"? {one.codec}: not judged here, as {one.doubt}", "yellow"
                    )
            if missing and not quiet:
                note(f"{console.width} columns have no room for: {', '.join(missing)}")
        if not quiet:
            for line in self._notes:
                note(line)

    def _headline(self) -> str:
        values = sum(tensor.values.size for tensor in self._tensors)
        nbytes = sum(tensor.values.nbytes for tensor in self._tensors)
        dtypes = sorted({str(tensor.values.dtype) for tensor in self._tensors})
        copies = [one.rate(one.copies) for one in self._timed]
        return "   ".join(
            [
                self._source,
                text.count(len(self._tensors), "tensor"),
                text.count(values, "value"),
                ", ".join(dtypes),
                text.size(nbytes),
                f"memcpy {_giga(float(np.median(copies)))} GB/s",
                text.count(thread_count(), "thread"),
                f"median of {text.count(self._rounds, 'round')}",
                processor(),
            ]
        )

    def _columns(self) -> list[Column]:
        total = Counter[str]()
        for one in self._timed:
            total.update(one.split)
        by_size = sorted(self._kinds, key=lambda kind: -total[kind])
        return [
            Column("codec", left=True),
            Column("bits/v"),
            *(Column(kind, rank=20 + by_size.index(kind)) for kind in self._kinds),
            Column("error"),
            Column("encode\nGB/s", rank=11),
            Column("÷ memcpy" if text.can_show("÷") else "/ memcpy"),
            Column("decode\nGB/s", rank=12),
            Column("÷ memcpy" if text.can_show("÷") else "/ memcpy"),
            Column("peak\nMiB", rank=15),
            Column("pays below\nGbit/s"),
        ]

    def _row(self, one: Timed) -> list[str]:
        return [
            str(one.codec),
            text.fixed(one.nbits / one.values),
            *(_share(one, kind) for kind in self._kinds),
            text.small(one.error),
            _giga(one.rate(one.encode)),
            text.fixed(one.to_copy(one.encode)),
            _giga(one.rate(one.decode)),
            text.fixed(one.to_copy(one.decode)),
            f"{max(one.encode_peak, one.decode_peak) / 2**20:.2f}",
            f"{one.pays_below / 1e9:.2g}" if one.pays_below else "never",
        ]

    def _numbers(self, one: Timed) -> dict[str, Any]:
        """Return what is known of a codec, in units without prefixes."""
        return {
            "codec": str(one.codec),
            "bits_per_value": one.nbits / one.values,
            **{f"{k}_bits_per_value": one.split.get(k, 0) / one.values for k in self._kinds},
            "error": number(one.error),
            "encode_bytes_per_second": one.rate(one.encode),
            "encode_to_memcpy": one.to_copy(one.encode),
            "decode_bytes_per_second": one.rate(one.decode),
            "decode_to_memcpy": one.to_copy(one.decode),
            "memcpy_bytes_per_second": one.rate(one.copies),
            "encode_peak_bytes": one.encode_peak,
            "decode_peak_bytes": one.decode_peak,
            "pays_below_bits_per_second": one.pays_below,
            "doubt": one.doubt,
        }

    def _document(self) -> dict[str, Any]:
        return {
            "source": self._source,
            "tensors": len(self._tensors),
            "values": sum(tensor.values.size for tensor in self._tensors),
            "bytes": sum(tensor.values.nbytes for tensor in self._tensors),
            "rounds": self._rounds,
            "statistic": "median",
            "threads": thread_count(),
            "processor": processor(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": version_of(("numba",)),
            "codecs": [self._numbers(one) for one in self._timed],
            "notes": self._notes,
            "exit_code": 0,
        }


def _share(one: Timed, kind: str) -> str:
    nbits = one.split.get(kind, 0)
    return text.fixed(nbits / one.values) if nbits else ""


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.3g}"
