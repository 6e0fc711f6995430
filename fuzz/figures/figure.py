"""What is measured: how much was tried, and what was not as promised."""

from __future__ import annotations

from typing import NamedTuple

SHOWN = 5  # failures that are printed


class Figure(NamedTuple):
    """A figure.

    Attributes
    ----------
    name, promise : str
    count : int
        How much was tried.
    unit : str
        Of what.
    failures : list of str
        Where the promise did not hold.
    detail : str
        What else was measured.
    """

    name: str
    promise: str
    count: int
    unit: str
    failures: list[str]
    detail: str = ""

    def text(self) -> str:
        """Return some lines that tell the figure."""
        verdict = f"FAILED {len(self.failures)} times" if self.failures else "holds"
        lines = [f"{self.name}  {self.promise}: {verdict}; {self.count} {self.unit}"]
        lines += [f"    {line}" for line in self.detail.splitlines()]
        return "\n".join([*lines, *(f"    {what}" for what in self.failures[:SHOWN])])
