"""The view of ``gcodec inspect --over-steps``: a table, JSON and CSV of tensors over steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gcodec.analysis.settings import Settings
from gcodec.cli.render import text
from gcodec.cli.render.output import Column, Table, View, note
from gcodec.errors import ParameterError

if TYPE_CHECKING:  # SciPy is imported for dumps only
    from gcodec.analysis.steps import RunStats, StepGroup, StepPoint

_WIDE = 110  # columns of a terminal from which on the series are longer
_WIDTHS = (8, 16)  # of a series


class StepsView(View["StepGroup"]):
    """The view of a run.

    Parameters
    ----------
    run : RunStats
        Measurements on the dumps of the run.
    settings : Settings
        Settings of the measurement.
    each : bool
        Whether every tensor has a row of its own.
    width : int
        Number of columns of the terminal.

    Attributes
    ----------
    run, settings
        The parameters.
    """

    def __init__(self, run: RunStats, settings: Settings, *, each: bool, width: int) -> None:
        self.run, self.settings = run, settings
        self.rows = run.groups(each=each)
        self.orders = {
            "name": _title,
            "size": lambda group: -group.values,
            "bits": lambda group: (math.isnan(last := _last(group.bits())), -last),
        }
        self._width = _WIDTHS[width >= _WIDE]

    def headline(self) -> str:
        """Return the line above the table."""
        steps = self.run.steps
        return "   ".join(
            [
                f"{text.count(len(steps), 'step')}, {steps[0]:,}"
                + (f" to {steps[-1]:,}" if len(steps) > 1 else ""),
                text.count(len(self.run.tensors), "tensor"),
                text.count(self.run.total.values, "value"),
            ]
        )

    def table(self, top: int | None = None) -> Table[StepGroup]:
        """Return the table, with the first rows or all of them."""
        width = self._width
        total = self.run.total if self.run.tensors else None
        columns: list[Column[StepGroup]] = [
            Column("tensor", _title, left=True),
            Column("shape", _shape, left=True, rank=51, in_total=False),
            Column("values", lambda group: f"{group.values:,}", rank=50),
            Column("norm", lambda group: _cell(group.norms(), text.small, 7, width)),
            Column(
                f"entropy at {self.settings.error:g}",
                lambda group: _cell(group.bits(), text.fixed, 5, width),
                rank=20,
            ),
            Column("rank of 99 %", lambda group: _rank(group, width), rank=30, in_total=False),
            Column("zero %", lambda group: _cell(group.zeros(), _percent, 5, width), rank=40),
        ]
        if any(group.nonfinite for group in self.rows):
            columns.append(Column("NaN/Inf", lambda group: str(group.nonfinite)))
        return Table(columns, self.rows, total, lambda group: bool(group.nonfinite), top)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the run."""
        settings, run = self.settings, self.run
        return {
            "error": settings.error,
            "sample": {"values_per_tensor": settings.max_values, "seed": settings.seed},
            "steps": [
                {"step": step, "file": str(path)}
                for step, path in zip(run.steps, run.paths, strict=True)
            ],
            "tensors": [
                {
                    "name": entry.name,
                    "shape": list(entry.shape),
                    "dtype": entry.dtype,
                    "values": entry.size,
                    "points": [
                        {"step": step, **_point_document(points[entry])}
                        for step, points in zip(run.steps, run.points, strict=True)
                        if entry in points
                    ],
                }
                for entry in run.tensors
            ],
            "groups": [
                {
                    "name": group.name,
                    "tensors": [member.name for member in group.members],
                }
                for group in self.rows
            ],
        }

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each tensor at each step."""
        run = self.run
        return [
            {
                "step": step,
                "file": str(path),
                "tensor": entry.name,
                "shape": "x".join(map(str, entry.shape)),
                "dtype": entry.dtype,
                "values": entry.size,
                **_point_document(point),
            }
            for step, path, points in zip(run.steps, run.paths, run.points, strict=True)
            for entry, point in points.items()
        ]

    def notes(self) -> list[str]:
        """Return how to read the series, and which ranks are not measured."""
        notes = [
            "each series spans its own range, from its least value to its largest one; "
            "the number is that of the last step"
        ]
        if any(math.isnan(_last(group.ranks())) and group.side for group in self.rows):
            from gcodec.analysis.steps import FULL_SIDE, SIDE

            notes.append(
                f"the rank of matrices is measured if their smaller side is at most {SIDE:,}, "
                f"or with --full {FULL_SIDE:,}"
            )
        return notes

    def draw(self, path: str, top: int | None, quiet: bool) -> None:
        """Draw the first rows or all of them to an .svg or .png file.

        Raises
        ------
        ParameterError
            If there are no rows.
        """
        from gcodec.cli.render.figures import Panel, write_steps

        if not self.rows:
            raise ParameterError("--plot: the files contain no gradients to draw")
        groups = self.rows[:top]

        def series(measure: Callable[[StepGroup], list[float]]) -> list[tuple[str, list[float]]]:
            return [(_title(group), measure(group)) for group in groups]

        panels = [
            Panel("norm", series(lambda group: group.norms()), is_logarithmic=True),
            Panel(
                f"entropy in bits per value at an nmse of {self.settings.error:g}",
                series(lambda group: group.bits()),
            ),
            Panel(
                "rank of 99 % of the energy, as a share of the smaller side",
                series(lambda group: [rank / (group.side or 1) for rank in group.ranks()]),
            ),
            Panel("zeros in %", series(lambda group: [100 * zeros for zeros in group.zeros()])),
        ]
        colored = write_steps(path, self.run.steps, panels)
        if colored < len(groups) and not quiet:
            note(
                f"{path}: the first {colored} rows have colors, the others are gray; choose with "
                "--sort, --top and -L"
            )


def _point_document(point: StepPoint) -> dict[str, object]:
    return {
        "norm": point.norm,
        "entropy_bits": point.bits,
        "rank_99": point.rank,
        "zeros": point.zeros,
        "nonfinite": point.nonfinite,
    }


def _last(series: Sequence[float]) -> float:
    """Return the last value of a series that is not NaN; NaN if there is none."""
    return next((value for value in reversed(series) if not math.isnan(value)), math.nan)


def _cell(series: Sequence[float], form: Callable[[float], str], room: int, width: int) -> str:
    """Draw a series, and format its last value."""
    last = _last(series)
    if math.isnan(last):
        return "-"
    return f"{text.trend(series, width)} {form(last):>{room}}"


def _title(group: StepGroup) -> str:
    return text.repeated(group.name, len(group.members))


def _shape(group: StepGroup) -> str:
    return text.shape(group.members[0].shape)


def _rank(group: StepGroup, width: int) -> str:
    side = group.side
    return _cell(group.ranks(), lambda rank: f"{rank:g}/{side}", 2 * len(str(side)) + 1, width)


def _percent(share: float) -> str:
    return text.percent(share, 1)
