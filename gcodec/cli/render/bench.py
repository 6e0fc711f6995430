"""View of ``gcodec bench``: a table, JSON, CSV or Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from datetime import date
from functools import partial

import numpy as np

from gcodec.advisor.machines import Machine
from gcodec.analysis.host import processor, version_of
from gcodec.analysis.samples import Sample
from gcodec.analysis.timing import Timing
from gcodec.cli.render import text
from gcodec.cli.render.dissect import KINDS
from gcodec.cli.render.output import (
    Column,
    Table,
    View,
    print_csv,
    print_document,
)
from gcodec.runtime.pool import thread_count


class BenchView(View[Timing]):
    """The view of one run.

    Parameters
    ----------
    source : str
        Source of the tensors.
    samples : sequence of Sample
        The tensors.
    timings : list of Timing
        Measurements of each codec.
    rounds : int
        Number of measurements of each codec.
    notes : list of str
        Notes for the reader.
    """

    def __init__(
        self,
        source: str,
        samples: Sequence[Sample],
        timings: list[Timing],
        rounds: int,
        notes: list[str],
    ) -> None:
        self._source, self._samples, self.rows = source, samples, timings
        self._rounds, self._notes = rounds, notes
        self._values = sum(sample.values.size for sample in samples)
        self._nbytes = sum(sample.values.nbytes for sample in samples)
        self._split: Counter[str] = Counter()
        for timing in timings:
            self._split.update(timing.split)
        kinds = {kind for kind, nbits in self._split.items() if nbits}
        self._kinds = [kind for kind in KINDS if kind in kinds] + sorted(kinds - {*KINDS})

    def print_form(self, form: str) -> None:
        """Print the run in a form: "json", "csv" or "markdown"."""
        if form == "json":
            print_document("bench", self._document())
        elif form == "csv":
            print_csv([self._record(timing) for timing in self.rows])
        else:
            self.table().print_markdown()

    def print_machine(self, name: str) -> None:
        """Print the coding speeds as rows of the table of machines."""
        threads = f"--rounds {self._rounds} --threads {thread_count()}"
        facts = f"gcodec bench {self._source} {threads}", processor(), date.today().isoformat()
        speeds = {str(timing.codec): timing.speed for timing in self.rows}
        print_csv(Machine(name, "; ".join(facts), speeds).rows())

    def headline(self) -> str:
        """Return the line above the table."""
        dtypes = sorted({str(sample.values.dtype) for sample in self._samples})
        copies = [timing.rate(timing.copies) for timing in self.rows]
        return "   ".join(
            [
                self._source,
                text.count(len(self._samples), "tensor"),
                text.count(self._values, "value"),
                ", ".join(dtypes),
                text.size(self._nbytes),
                f"memcpy {_giga(float(np.median(copies)))} GB/s",
                text.count(thread_count(), "thread"),
                f"median of {text.count(self._rounds, 'round')}",
                processor(),
            ]
        )

    def warnings(self) -> list[tuple[str, str]]:
        """Return the codecs that these values cannot judge."""
        doubts = ((t.doubt, str(t.codec)) for t in self.rows if t.doubt is not None)
        return [
            (f"? {', '.join(names)}: not judged here, as {reason}", "yellow")
            for reason, names in text.gathered(doubts).items()
        ]

    def notes(self) -> list[str]:
        """Return the notes."""
        return self._notes

    def table(self, top: int | None = None) -> Table[Timing]:
        """Return the table."""
        by_size = sorted(self._kinds, key=lambda kind: -self._split[kind])
        ratio = text.either("\n÷ memcpy", "\n/ memcpy")
        columns = [
            Column("codec", lambda t: str(t.codec), left=True),
            Column("bits/v", lambda t: text.fixed(t.nbits / t.values)),
            *(
                Column(kind, partial(_split_cell, kind), rank=20 + by_size.index(kind))
                for kind in self._kinds
            ),
            Column("nmse", lambda t: text.small(t.error)),
            Column("encode\nGB/s", lambda t: _giga(t.rate(t.encode)), rank=11),
            Column(ratio, lambda t: text.fixed(t.to_copy(t.encode)), rank=1),
            Column("decode\nGB/s", lambda t: _giga(t.rate(t.decode)), rank=12),
            Column(ratio, lambda t: text.fixed(t.to_copy(t.decode)), rank=2),
            Column(
                "peak\nMiB", lambda t: f"{max(t.encode_peak, t.decode_peak) / 2**20:.2f}", rank=15
            ),
            Column("pays below\nGbit/s", lambda t: text.pays_below(t.pays_below)),
        ]
        return Table(columns, self.rows, top=top)

    def _record(self, timing: Timing) -> dict[str, object]:
        """Return the measurements of a codec in units without prefixes."""
        return {
            "codec": str(timing.codec),
            "bits_per_value": timing.nbits / timing.values,
            **{
                f"{kind}_bits_per_value": timing.split.get(kind, 0) / timing.values
                for kind in self._kinds
            },
            "nmse": timing.error,
            "error": timing.error,  # earlier name
            "encode_bytes_per_second": timing.rate(timing.encode),
            "encode_to_memcpy": timing.to_copy(timing.encode),
            "decode_bytes_per_second": timing.rate(timing.decode),
            "decode_to_memcpy": timing.to_copy(timing.decode),
            "memcpy_bytes_per_second": timing.rate(timing.copies),
            "encode_peak_bytes": timing.encode_peak,
            "decode_peak_bytes": timing.decode_peak,
            "pays_below_bits_per_second": timing.pays_below,
            "doubt": timing.doubt,
        }

    def _document(self) -> dict[str, object]:
        return {
            "source": self._source,
            "tensors": len(self._samples),
            "values": self._values,
            "bytes": self._nbytes,
            "rounds": self._rounds,
            "statistic": "median",
            "threads": thread_count(),
            "processor": processor(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": version_of(("numba",)),
            "codecs": [self._record(timing) for timing in self.rows],
            "notes": self._notes,
            "exit_code": 0,
        }


def _split_cell(kind: str, timing: Timing) -> str:
    nbits = timing.split.get(kind, 0)
    return text.fixed(nbits / timing.values) if nbits else ""


def _giga(rate: float) -> str:
    return text.three_digits(rate / 1e9)
