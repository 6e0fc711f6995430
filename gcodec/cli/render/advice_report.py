"""Advice as text."""

from __future__ import annotations

import math

from rich.console import Console

from gcodec import advisor
from gcodec.cli import text
from gcodec.cli.advice import Advised
from gcodec.cli.effects import Effect
from gcodec.cli.notes import note
from gcodec.cli.render.table import Column, print_line, print_table

_PLACES = {"inside": "inside nodes", "between": "between nodes"}
_GROUPS = {"inside": "GPU", "between": "node"}


def show(advised: Advised, console: Console, *, quiet: bool) -> None:
    """Print the advice; notes go to stderr unless `quiet`."""
    print_line(console, _headline(advised), "bold")
    missing: list[str] = []
    if advised.advice.dense.ways:
        level = max(advised.advice.dense.ways, key=lambda way: way.time).level
        console.print()
        _show_best(advised, console)
        _show_balance(advised, console, level)
        console.print()
        missing += _show_times(advised, console, level)
        _show_slow_gathers(advised, console, level)
    else:
        print_line(console, "one GPU: there is nobody to agree with, and nothing to send")
    if advised.measured:
        console.print()
        missing += _show_convergence(advised, console)
    if quiet:
        return
    if missing:
        headers = ", ".join(dict.fromkeys(header.strip() for header in missing))
        note(f"{console.width} columns have no room for: {headers}")
    for m in advised.measured:
        if m.problem is not None:
            note(f"no {m.codec}: {m.problem}")
    if advised.measured:
        note(f"codecs measured on {advised.source.name}")
    if advised.source.left_out:
        note(f"{text.count(advised.source.left_out, 'tensor')} left out that are no gradients")
    if math.isinf(advised.work.encode) and math.isinf(advised.work.decode):
        note("the time of coding is not counted, but for --encode and --decode")


def _headline(advised: Advised) -> str:
    cluster, work = advised.cluster, advised.work
    parts = [
        f"{text.count(work.values, 'value')} of {work.bits:g} bits",
        f"{text.count(cluster.nodes, 'node')} x {text.count(cluster.gpus, 'GPU')}",
    ]
    for level in cluster.levels:
        _, link = cluster.group(level)
        if link is not None:
            after = f" after {text.duration(link.latency)}" if link.latency else ""
            parts.append(f"{_PLACES[level]} {text.speed(link.bandwidth)}{after}")
    return "   ".join([*parts, f"{text.duration(work.compute)} a step"])


def _show_best(advised: Advised, console: Console) -> None:
    best, dense, work = advised.advice.best, advised.advice.dense, advised.work
    share = "" if work.overlap == 1 else f" by {100 * work.overlap:.3g} %"
    rows = [
        [_PLACES[way.level], _spelled(advised, way), *_gain(way.time, plain.time)]
        for way, plain in zip(best.ways, dense.ways, strict=True)
    ]
    if best.coding:
        rows.append(["coding", "", text.duration(best.coding), "", ""])
    rows.append(["step", "", *_gain(best.step, dense.step)])
    rows.append([f"step, overlapped{share}", "", *_gain(best.hidden, dense.hidden)])
    columns = [Column("advice", left=True), Column("", left=True), Column("takes")]
    print_table(console, [*columns, Column("dense"), Column("speed-up")], rows)


def _spelled(advised: Advised, way: advisor.Way) -> str:
    if way.scheme is None:
        return f"dense, {way.collective}"
    name = way.scheme.name
    return f"{text.printable(name)}, {way.collective}, {advised.uses[name]}"


def _show_balance(advised: Advised, console: Console, level: advisor.Level) -> None:
    found = [b for b in advised.advice.balances if b.level == level]
    told = [
        f"{b.collective} {b.bits:.3g} bits/v{_times(text.ratio(advised.work.bits, b.bits))}"
        for b in found
        if b.bits is not None
    ]
    what = f"{_PLACES[level]}, communication takes as long as computation"
    if told:
        print_line(console, f"{what} at: {', '.join(told)}")
    else:
        print_line(console, f"{what} at no compression, or longer: latency and the rest do")


def _times(factor: float | None) -> str:
    if factor is None:
        return ""
    return f" ({factor:.3g}x less)" if factor > 1 else " (dense has less)"


def _show_times(advised: Advised, console: Console, level: advisor.Level) -> list[str]:
    members, _ = advised.cluster.group(level)
    dense, bits = advised.advice.dense, advised.work.bits
    columns = [
        Column(text.count(members, _GROUPS[level]), left=True),
        Column("bits/v", rank=4),
        Column("ratio", rank=8),
        Column("nmse", rank=3),
        Column("all-gather"),
        Column("two-phase"),
        Column("step", rank=5),
        Column("speed-up", rank=5),
        Column("overlapped", rank=2),
        Column("speed-up"),
    ]
    ring = text.duration(advised.dense(level).time)
    rows = [["dense", f"{bits:.2f}", "1.0", "0", "-", f"ring {ring}", *_steps(dense, dense)]]
    by_scheme: dict[str, list[advisor.Way]] = {}
    for way in advised.advice.ways:
        if way.level == level and way.scheme is not None:
            by_scheme.setdefault(way.scheme.name, []).append(way)
    useless = []
    for name, ways in by_scheme.items():
        scheme = ways[0].scheme
        assert scheme is not None
        if not scheme.converges:
            useless.append(len(rows))
        times = {way.collective: text.duration(way.time) for way in ways}
        fastest = min((advised.alone(way) for way in ways), key=lambda p: (p.hidden, p.step))
        factor = text.ratio(bits, scheme.bits)
        rows.append(
            [
                *(name, f"{scheme.bits:.2f}", "-" if factor is None else f"{factor:.1f}"),
                *(text.small(scheme.error), times.get("all-gather", "-"), times["two-phase"]),
                *_steps(fastest, dense),
            ]
        )
    return print_table(console, columns, rows, marked=frozenset(useless))


def _show_slow_gathers(advised: Advised, console: Console, level: advisor.Level) -> None:
    slow = advised.slow_gathers(level)
    if not slow:
        return
    members, _ = advised.cluster.group(level)
    group = text.count(members, _GROUPS[level])
    limit, dense = advised.gather_limit(level), advised.dense(level).time
    what = f"! all-gather over {group} is slower than dense from {limit:.3g} bits/v on:"
    told = [f"{way.scheme.name} {way.time / dense:.3g}x" for way in slow if way.scheme]
    print_line(console, f"{what} {', '.join(told)}", "red")


def _show_convergence(advised: Advised, console: Console) -> list[str]:
    course = advised.course
    columns = [
        Column(f"{course.steps:,} steps,\n{text.count(course.workers, 'worker')}", left=True),
        Column("by law:\ndelta", rank=2),
        Column("\nomega", rank=3),
        Column("\nresidual", rank=5),
        Column("\nbound"),
        Column("as measured:\ndelta", rank=2),
        Column("\nomega", rank=3),
        Column("\nresidual", rank=6),
        Column("\nbound"),
        Column("\nuse with", left=True, rank=1),
    ]
    plain = course.plain
    rows = [
        [str(m.codec), *_cells(law, plain), *_cells(here, plain), here.use or "not at all"]
        for m, law, here in zip(advised.measured, advised.laws, advised.here, strict=True)
    ]
    useless = frozenset(i for i, here in enumerate(advised.here) if here.use is None)
    missing = print_table(console, columns, rows, marked=useless)
    print_line(console, "residual: its norm at most, as a multiple of that of a gradient")
    print_line(console, "bound: of the mean squared gradient, as a multiple of that of dense")
    for reason, names in _doubts(advised).items():
        print_line(console, f"? {', '.join(names)}: not judged here, as {reason}", "yellow")
    return missing


def _doubts(advised: Advised) -> dict[str, list[str]]:
    """Return the codecs that cannot be judged on what was measured, by the reason."""
    found: dict[str, list[str]] = {}
    for m in advised.measured:
        if m.doubt is not None:
            found.setdefault(m.doubt, []).append(str(m.codec))
    return found


def _cells(effect: Effect, plain: float) -> list[str]:
    residual, bound = math.sqrt(effect.residual), effect.bound / plain
    return [_three(value) for value in (effect.delta, effect.omega, residual, bound)]


def _three(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if 999.5 <= value < 1e6 else f"{value:.3g}"


def _gain(own: float, dense: float) -> list[str]:
    return [text.duration(own), text.duration(dense), _speed_up(own, dense)]


def _steps(plan: advisor.Plan, dense: advisor.Plan) -> list[str]:
    without = [text.duration(plan.step), _speed_up(plan.step, dense.step)]
    return [*without, text.duration(plan.hidden), _speed_up(plan.hidden, dense.hidden)]


def _speed_up(own: float, dense: float) -> str:
    factor = text.ratio(dense, own)
    return "-" if factor is None else f"{factor:.3g}x"
