"""`bench.scale`: links, rows, predictions, and the simulation, on tiny cases."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_processes import run_programs

pytest.importorskip("torch", reason="torch is not installed")

from bench import links, scale
from bench.scale_simulated import Outcome, Setting, expected, simulate
from bench.scale_worker import Hook, Speed

ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, as on Linux")
DENSE = 4 * 2_913_290  # bytes of a gradient
ROWS = [Hook("none"), Hook("sign", "gather")]


def measured(file: Path, speed: Speed, *, has_links: bool) -> dict[str, Any]:
    """Run two ranks in a process of their own."""
    layout, rows = scale.Layout(2, 1), [tuple(hook) for hook in ROWS]
    program = (
        "from pathlib import Path; from bench import scale; "
        f"scale.measure(scale.Layout{tuple(layout)}, [scale.Hook(*row) for row in {rows}], "
        f"[scale.Speed{tuple(speed)}], 1, Path({str(file)!r}), has_links={has_links})"
    )
    (done,) = run_programs([["-c", program]], ROOT, [{"GCODEC_NUM_THREADS": "1"}])
    assert done.status == 0, done.errors
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return result


@LINUX
def test_rows_without_links(tmp_path: Path) -> None:
    speed = Speed(0, 0)
    result = measured(tmp_path / "result.json", speed, has_links=False)
    assert [row[0] for row in result["rows"]] == ["alone", "none", "sign"]
    none, sign = (scale.row_of(result, hook, speed) for hook in ROWS)
    assert none is not None and sign is not None
    assert DENSE < none["wire"] / 2 < 1.05 * DENSE  # the loopback counts both ranks
    assert 1 < sign["bits"] < 1.1
    assert all((scale.predicted(result, hook, speed) or 0) > 0 for hook in ROWS)


@pytest.mark.skipif(bool(links.missing()), reason=links.missing())
def test_links_have_their_rate_and_delay(tmp_path: Path) -> None:
    speed = Speed(2e8, 3e-3)
    result = measured(tmp_path / "result.json", speed, has_links=True)
    [(_, _, ping, one, everyone, latency)] = result["links"]
    # The machine may be slower than the links, never faster.
    assert ping > speed.delay and latency > speed.delay
    assert one < 1.1 * speed.rate and everyone < 1.1 * speed.rate
    none, sign = (scale.row_of(result, hook, speed) for hook in ROWS)
    assert none is not None and sign is not None
    assert DENSE < none["wire"] < 1.1 * DENSE
    assert none["seconds"] > 0.95 * 8 * DENSE / speed.rate
    assert DENSE / 32 < sign["wire"] < 1.3 * DENSE / 32
    text = "\n".join(scale.tables([result], {}))
    assert "| 2 | 200 Mbit/s, 3 ms | " in text


def test_machines_without_links_say_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.setattr(links.sys, "platform", "linux")
    monkeypatch.setattr(sys, "argv", ["bench.scale", "--workers", "1", "--folder", str(tmp_path)])
    scale.main()
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "No steps on links are measured, because network namespaces need root."


def result_of(size: int, inside: int, bits: float) -> dict[str, Any]:
    """Return a result with plain numbers: links of 8 Mbit/s and 10 ms, and 10⁶ values."""
    hooks = [
        *(Hook("none"), Hook("fp16"), Hook("sign", "gather"), Hook("sign", "two-phase")),
        *(Hook("sign", "hierarchical"), Hook("powersgd", "factors"), Hook("PowerSGD")),
    ]
    row = {"seconds": 1.0, "bits": bits}
    return {
        "processors": 2,
        "size": size,
        "inside": inside,
        "values": 10**6,
        "links": [[8e6, 0.01, 0.01, 8e6, 8e6, 0.02]],
        "inside_link": [0.0, 8e9, 8e9, 0.001],
        "coding": {
            f"{hook.name}, {hook.collective}": {"encode": 0.1, "decode": 0.01} for hook in hooks
        },
        "rows": [["alone", "", 8e6, 0.01, {"seconds": 0.5}]]
        + [[*hook, 8e6, 0.01, row] for hook in hooks],
    }


def test_headings_of_tables_are_those_of_the_page() -> None:
    result = result_of(8, 2, 1.0)
    for *_, row in result["rows"]:
        row |= {"wire": 1e6, "processor": 1.0, "relay": 0.1, "bits": 1.0}
    lines = "\n".join(scale.tables([result], {})).splitlines()
    titles = [line for line in lines if line.startswith("### ")]
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
    on_page = [line for line in page.splitlines() if line.startswith("### ")]
    steps = "### A step in ms, "
    assert [title for title in on_page if not title.startswith(steps)] == [
        title for title in titles if not title.startswith(steps)
    ]
    assert titles.count(f"{steps}8 Mbit/s, 10 ms") == 1


@pytest.mark.parametrize(
    ("hook", "seconds"),
    [
        (Hook("none"), 6 * (0.02 + 1.0)),
        (Hook("fp16"), 6 * (0.02 + 0.5)),
        # Four ranks code on two processors; a message has an eighth more than its bytes.
        (Hook("sign", "gather"), 3 * (0.02 + 9 / 64) + 2 * (0.1 + 4 * 0.01)),
        (Hook("sign", "two-phase"), 4 * 0.02 + 6 / 4 * 9 / 64 + 2 * (0.1 * 5 / 4 + 2 * 0.01)),
        (Hook("powersgd", "factors"), 15 * 0.02 + 6 / 4 * 0.125 + 2 * 0.1),
    ],
)
def test_predictions(hook: Hook, seconds: float) -> None:
    actual = scale.predicted(result_of(4, 1, 1.0), hook, Speed(8e6, 0.01))
    assert actual is not None and math.isclose(actual, 0.5 + seconds, rel_tol=1e-9)
    assert scale.predicted(result_of(4, 1, 1.0), Hook("PowerSGD"), Speed(8e6, 0.01)) is None


def test_prediction_of_a_hierarchy() -> None:
    """Eight ranks in four nodes: rings of two inside, and two phases of four between."""
    actual = scale.predicted(result_of(8, 2, 0.5), Hook("sign", "hierarchical"), Speed(8e6, 0.01))
    inside = 2 * (0.001 + 4e6 / 2 / 1e9)
    between = 4 * 0.02 + 6 / 4 * 9 / 64
    coding = 4 * (0.1 * 5 / 4 + 2 * 0.01) / 2
    assert actual is not None and math.isclose(actual, 0.5 + inside + between + coding)


@pytest.mark.parametrize("collective", ["gather", "two-phase", "hierarchical", "factors"])
def test_simulated_bytes_agree_with_the_advisor(collective: str) -> None:
    codec = "powersgd:rank=2" if collective == "factors" else "minmax:bits=8"
    setting, values = Setting(16, codec, collective, 2), 256 * 16 + 4 * 16 * 64 + 64 * 256
    outcome = simulate(setting, width=16, hidden=64)
    assert outcome.equal
    assert len(outcome.residuals) == len(outcome.losses) == 2
    assert 0 < outcome.residuals[0] < 1
    for actual, number in zip(
        (outcome.inside, outcome.between), expected(setting, outcome.bits, values), strict=True
    ):
        assert actual == pytest.approx(number, rel=0.25)  # a share of 100 values has a header


def test_table_of_simulations() -> None:
    setting = Setting(64, "sign", "hierarchical", 2)
    outcome = Outcome(1.1e6, 4e4, 1.0, [0.5, 0.75], True, [5.0, 4.0], 1.0)
    *_, row = scale.tables([], {setting: outcome})
    assert row.startswith("| 64 | `sign` | hierarchical | 1,100, 1,032, -6 % | 40, ")
    assert row.endswith("| 0.5 → 0.75 | equal |")
