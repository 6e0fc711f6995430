"""Views of ``gcodec advise``: tables, and JSON with times in seconds and speeds in bytes/s."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from rich.console import Console

from gcodec import advisor
from gcodec.analysis.advice import ClusterAdvice, CodecEffects, Effect, MeasuredCodec
from gcodec.cli.render import text
from gcodec.cli.render.output import (
    Column,
    Table,
    note,
    note_hidden,
    omission_notes,
    print_line,
)

_LEVELS = {"inside": "inside nodes", "between": "between nodes"}
_MEMBERS = {"inside": "GPU", "between": "node"}


# --- JSON


def document(advice: ClusterAdvice) -> dict[str, Any]:
    """Return the advice for a JSON document."""
    cluster, work, training = advice.cluster, advice.work, advice.training
    machine = advice.machine
    return {
        "source": {
            "name": advice.source.name,
            "tensors_left_out": advice.source.skipped,
            "nonfinite": advice.source.nonfinite,
            "omitted": advice.source.omitted,
        },
        "work": {
            "values": work.values,
            "bits_per_value": work.bits,
            "compute_s": work.compute,
            "overlap": work.overlap,
            "encode_values_per_s": work.encode,
            "decode_values_per_s": work.decode,
        },
        "machine": machine and {"name": machine.name, "source": machine.source},
        "cluster": {
            "nodes": cluster.nodes,
            "gpus": cluster.gpus,
            "between": _link_document(cluster.between),
            "inside": _link_document(cluster.inside),
        },
        "dense": _plan_document(advice, advice.advice.dense),
        "best": _plan_document(advice, advice.advice.best),
        "levels": [_level_document(advice, way) for way in advice.advice.dense.ways],
        "convergence": {
            "steps": training.steps,
            "gap": training.problem.gap,
            "workers": training.workers,
            "plain_bound": training.plain_bound,
        },
        "codecs": [
            {
                "codec": str(m.codec),
                "bits_per_value": m.bits,
                "nmse": m.error,
                "unbiased": m.codec.unbiased,
                "problem": m.problem,
                "doubt": m.doubt,
                **_coding_document(advice, m),
                "law": _effect_document(law, training.plain_bound),
                "measured": _effect_document(measured, training.plain_bound),
            }
            for m, law, measured in advice.effects
        ],
    }


def _link_document(link: advisor.Link | None) -> dict[str, float] | None:
    if link is None:
        return None
    return {"bytes_per_s": link.bandwidth, "latency_s": link.latency}


def _coding_document(advice: ClusterAdvice, measured: MeasuredCodec) -> dict[str, object]:
    """Return the coding speeds of a codec, and the link speed below which it pays."""
    encode = decode = pays_below = None
    if (scheme := advice.scheme(measured.codec)) is not None:
        encode, decode = scheme.coding_rates(advice.work)
        pays_below = 8 * scheme.pays_below(advice.work)
    return {
        "encode_values_per_s": encode,
        "decode_values_per_s": decode,
        "pays_below_bits_per_second": pays_below,
    }


def _level_document(advice: ClusterAdvice, dense: advisor.Way) -> dict[str, object]:
    members, _ = advice.cluster.group(dense.level)
    balances = [b for b in advice.advice.balances if b.level == dense.level]
    return {
        "level": dense.level,
        "members": members,
        "dense_s": dense.time,
        "all_gather_limit_bits_per_value": advice.gather_limit(dense.level),
        "balanced_bits_per_value": {b.collective: b.bits for b in balances},
        "ways": [
            {
                **_way_document(advice, way),
                "slower_than_dense": way.time > dense.time,
                "times_dense": text.ratio(way.time, dense.time),
                **_steps_document(advice, advice.plan_of(way)),
            }
            for way in advice.ways(dense.level)
        ],
    }


def _plan_document(advice: ClusterAdvice, plan: advisor.Plan) -> dict[str, object]:
    return {
        "ways": [_way_document(advice, way) for way in plan.ways],
        "communication_s": plan.communication,
        "coding_s": plan.coding,
        **_steps_document(advice, plan),
        "nmse": plan.error,
    }


def _way_document(advice: ClusterAdvice, way: advisor.Way) -> dict[str, object]:
    scheme = way.scheme
    return {
        "level": way.level,
        "collective": way.collective,
        "codec": None if scheme is None else scheme.name,
        "use": None if scheme is None else advice.uses.get(scheme.name),
        "bits_per_value": advice.work.bits if scheme is None else scheme.bits,
        "communication_s": way.time,
        "coding_s": way.coding,
    }


def _steps_document(advice: ClusterAdvice, plan: advisor.Plan) -> dict[str, object]:
    dense = advice.advice.dense
    return {
        "step_s": plan.step,
        "speedup": text.ratio(dense.step, plan.step),
        "step_with_overlap_s": plan.hidden,
        "speedup_with_overlap": text.ratio(dense.hidden, plan.hidden),
    }


def _effect_document(effect: Effect, plain_bound: float) -> dict[str, object]:
    return {
        "delta": effect.delta,
        "omega": effect.omega,
        "use": effect.use,
        "residual_bound": effect.residual,
        "bound": effect.bound,
        "times_plain_bound": effect.bound / plain_bound,
        "steps_to_double": effect.steps_to_double,
    }


# --- text


def show(advice: ClusterAdvice, console: Console, *, quiet: bool) -> None:
    """Print the advice; notes go to stderr unless `quiet`."""
    print_line(console, _headline(advice), "bold")
    hidden: list[str] = []
    if dense_ways := advice.advice.dense.ways:
        level = max(dense_ways, key=lambda way: way.time).level
        console.print()
        _show_best(advice, console)
        _show_balance(advice, console, level)
        console.print()
        hidden += _show_times(advice, console, level)
        _show_slow_gathers(advice, console, level)
    else:
        print_line(console, "one GPU: there are no other workers, and nothing to send")
    if advice.codecs:
        console.print()
        hidden += _show_convergence(advice, console)
    if quiet:
        return
    note_hidden(console, hidden)
    for m in advice.codecs:
        if m.problem is not None:
            note(f"no {m.codec}: {m.problem}")
    for m in advice.untimed:
        note(f"no {m.codec}: its coding speed is unknown; gcodec bench --json measures it")
    if advice.codecs:
        note(f"codecs measured on {advice.source.name}")
    if advice.source.skipped:
        note(f"skipped {text.count(advice.source.skipped, 'tensor')}: no gradients")
    for line in omission_notes(advice.source.omitted):
        note(line)
    if advice.source.nonfinite:
        note(f"{text.count(advice.source.nonfinite, 'value')} NaN or Inf: taken as 0")
    if advice.machine is not None:
        note(f"coding speeds of {advice.machine.name}: {advice.machine.source}")
    others = (way.scheme for way in advice.advice.ways if way.scheme and not way.coding)
    for scheme in dict.fromkeys(others):  # in their order
        name = text.printable(scheme.name)
        note(f"times of {name} exclude coding; --encode and --decode include it")


def _headline(advice: ClusterAdvice) -> str:
    cluster, work = advice.cluster, advice.work
    parts = [
        f"{text.count(work.values, 'value')} of {work.bits:g} bits",
        f"{text.count(cluster.nodes, 'node')} x {text.count(cluster.gpus, 'GPU')}",
    ]
    for level in cluster.levels:
        _, link = cluster.group(level)
        if link is not None:
            latency = f" after {text.duration(link.latency)}" if link.latency else ""
            parts.append(f"{_LEVELS[level]} {text.speed(link.bandwidth)}{latency}")
    return "   ".join([*parts, f"{text.duration(work.compute)} a step"])


def _show_best(advice: ClusterAdvice, console: Console) -> None:
    best, dense, work = advice.advice.best, advice.advice.dense, advice.work

    def times(time: float, plain: float) -> tuple[str, str, str]:
        return text.duration(time), text.duration(plain), _speedup(time, plain)

    rows: list[tuple[str, ...]] = []
    for way, plain in zip(best.ways, dense.ways, strict=True):
        scheme = f"dense, {way.collective}"
        if way.scheme is not None:
            name = way.scheme.name
            scheme = f"{text.printable(name)}, {way.collective}, {advice.uses[name]}"
        rows.append((_LEVELS[way.level], scheme, *times(way.time, plain.time)))
    if best.coding:
        rows.append(("coding", "", text.duration(best.coding), "", ""))
    share = "" if work.overlap == 1 else f" by {100 * work.overlap:.3g} %"
    rows.append(("step", "", *times(best.step, dense.step)))
    rows.append((f"step, overlapped{share}", "", *times(best.hidden, dense.hidden)))
    headers = ("advice", "", "takes", "dense", "speed-up")
    columns = [Column(name, itemgetter(i), left=i < 2) for i, name in enumerate(headers)]
    Table(columns, rows).show(console)


def _show_balance(advice: ClusterAdvice, console: Console, level: advisor.Level) -> None:
    limits = []
    for b in advice.advice.balances:
        if b.level == level and b.bits is not None:
            factor = text.ratio(advice.work.bits, b.bits)
            hint = ""
            if factor is not None:
                less = f"{text.three_digits(factor)}x less"
                hint = f" ({less})" if factor > 1 else " (dense has less)"
            limits.append(f"{b.collective} {text.three_digits(b.bits)} bits/v{hint}")
    claim = f"{_LEVELS[level]}, communication takes as long as computation"
    if limits:
        print_line(console, f"{claim} at: {', '.join(limits)}")
    else:
        print_line(console, f"{claim} at no rate: latency and the other level alone take longer")


class _TimesRow(NamedTuple):
    """Times of a scheme at the slowest level, and the fastest plan with the scheme."""

    scheme: advisor.Scheme
    times: dict[str, str]
    plan: advisor.Plan


def _show_times(advice: ClusterAdvice, console: Console, level: advisor.Level) -> list[str]:
    members, _ = advice.cluster.group(level)
    dense, bits = advice.advice.dense, advice.work.bits
    ring = f"ring {text.duration(advice.dense(level).time)}"
    rows = [_TimesRow(advisor.Scheme("dense", bits, 0.0), {"two-phase": ring}, dense)]
    by_scheme: dict[advisor.Scheme, list[advisor.Way]] = {}
    for way in advice.ways(level):
        if way.scheme is not None:
            by_scheme.setdefault(way.scheme, []).append(way)
    for scheme, ways in by_scheme.items():
        fastest = min(map(advice.plan_of, ways), key=lambda plan: (plan.hidden, plan.step))
        times: dict[str, str] = {way.collective: text.duration(way.time) for way in ways}
        rows.append(_TimesRow(scheme, times, fastest))

    def ratio(row: _TimesRow) -> str:
        factor = text.ratio(bits, row.scheme.bits)
        return "-" if factor is None else f"{factor:.1f}"

    def pays_below(row: _TimesRow) -> str:
        limit = 8 * row.scheme.pays_below(advice.work)
        if row.plan is dense:
            return "-"
        return "any" if math.isinf(limit) else text.pays_below(limit)

    columns: list[Column[_TimesRow]] = [
        Column(text.count(members, _MEMBERS[level]), lambda row: row.scheme.name, left=True),
        Column("bits/v", lambda row: f"{row.scheme.bits:.2f}", rank=4),
        Column("ratio", ratio, rank=8),
        Column("nmse", lambda row: text.small(row.scheme.error), rank=3),
        Column("all-gather", lambda row: row.times.get("all-gather", "-")),
        Column("two-phase", lambda row: row.times["two-phase"]),
        Column("coding", lambda row: text.duration(row.plan.coding), rank=6),
        Column("step", lambda row: text.duration(row.plan.step), rank=5),
        Column("speed-up", lambda row: _speedup(row.plan.step, dense.step), rank=5),
        Column("overlapped", lambda row: text.duration(row.plan.hidden), rank=2),
        Column("speed-up", lambda row: _speedup(row.plan.hidden, dense.hidden)),
        Column("pays below\nGbit/s", pays_below, rank=1),
    ]
    return Table(columns, rows, is_marked=lambda row: not row.scheme.converges).show(console)


def _show_slow_gathers(advice: ClusterAdvice, console: Console, level: advisor.Level) -> None:
    dense = advice.dense(level).time
    slow = [
        f"{way.scheme.name} {text.three_digits(way.time / dense)}x"
        for way in advice.ways(level)
        if way.scheme and way.collective == "all-gather" and way.time > dense
    ]
    if slow:
        members, _ = advice.cluster.group(level)
        group = text.count(members, _MEMBERS[level])
        limit = text.three_digits(advice.gather_limit(level))
        claim = f"! all-gather over {group} is slower than dense from {limit} bits/v on"
        print_line(console, f"{claim}: {', '.join(slow)}", "red")


def _show_convergence(advice: ClusterAdvice, console: Console) -> list[str]:
    training = advice.training
    header = f"{training.steps:,} steps,\n{text.count(training.workers, 'worker')}"

    def by_law(value: Callable[[Effect], float | None]) -> Callable[[CodecEffects], str]:
        return lambda row: text.three_digits(value(row.by_law))

    def as_measured(value: Callable[[Effect], float | None]) -> Callable[[CodecEffects], str]:
        return lambda row: text.three_digits(value(row.as_measured))

    def residual(effect: Effect) -> float:
        return math.sqrt(effect.residual)

    def bound(effect: Effect) -> float:
        return effect.bound / training.plain_bound

    columns: list[Column[CodecEffects]] = [
        Column(header, lambda row: str(row.codec.codec), left=True),
        Column("by law:\ndelta", by_law(lambda effect: effect.delta), rank=2),
        Column("\nomega", by_law(lambda effect: effect.omega), rank=3),
        Column("\nresidual", by_law(residual), rank=5),
        Column("\nbound", by_law(bound)),
        Column("as measured:\ndelta", as_measured(lambda effect: effect.delta), rank=2),
        Column("\nomega", as_measured(lambda effect: effect.omega), rank=3),
        Column("\nresidual", as_measured(residual), rank=6),
        Column("\nbound", as_measured(bound)),
        Column("\nuse with", lambda row: row.as_measured.use or "not at all", left=True, rank=1),
    ]
    table = Table(columns, advice.effects, is_marked=lambda row: row.as_measured.use is None)
    hidden = table.show(console)
    if [*map(str.strip, hidden)].count("residual") < 2:  # by law, and as measured
        print_line(console, "residual: bound on its norm, as a multiple of that of a gradient")
    print_line(console, "bound: on the mean squared gradient, as a multiple of that of dense")
    doubts = ((m.doubt, str(m.codec)) for m in advice.codecs if m.doubt is not None)
    for reason, names in text.gathered(doubts).items():
        print_line(console, f"? {', '.join(names)}: not judged here, as {reason}", "yellow")
    return hidden


def _speedup(time: float, dense: float) -> str:
    factor = text.ratio(dense, time)
    return "-" if factor is None else f"{text.three_digits(factor)}x"
