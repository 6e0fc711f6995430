"""The result of a measurement: the number of trials, and the failures."""

from __future__ import annotations

from typing import NamedTuple

SHOWN = 5  # failures in the printed text


class Figure(NamedTuple):
    """The result of a measurement.

    Attributes
    ----------
    name, promise : str
        Name of the figure, and the promise that it checks.
    count : int
        Number of trials.
    unit : str
        What a trial is.
    failures : list of str
        Trials in which the promise did not hold.
    detail : str
        Further measurements.
    """

    name: str
    promise: str
    count: int
    unit: str
    failures: list[str]
    detail: str = ""

    def text(self) -> str:
        """Return the figure as a few lines of text."""
        verdict = f"FAILED {len(self.failures)} times" if self.failures else "holds"
        lines = [f"{self.name}  {self.promise}: {verdict}; {self.count} {self.unit}"]
        lines += [f"    {line}" for line in self.detail.splitlines()]
        return "\n".join([*lines, *(f"    {what}" for what in self.failures[:SHOWN])])
