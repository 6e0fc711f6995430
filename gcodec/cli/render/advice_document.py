"""Advice as JSON. Times are in seconds, speeds in bytes a second."""

from __future__ import annotations

from typing import Any

from gcodec import advisor
from gcodec.cli import text
from gcodec.cli.advice import Advised
from gcodec.cli.document import number


def document(advised: Advised) -> dict[str, Any]:
    """Return the advice for a JSON document."""
    cluster, work, source, course = (
        *(advised.cluster, advised.work),
        *(advised.source, advised.course),
    )
    return {
        "source": {"name": source.name, "tensors_left_out": source.left_out},
        "work": {
            "values": work.values,
            "bits_per_value": work.bits,
            "compute_s": work.compute,
            "overlap": work.overlap,
            "encode_values_per_s": number(work.encode),
            "decode_values_per_s": number(work.decode),
        },
        "cluster": {
            "nodes": cluster.nodes,
            "gpus": cluster.gpus,
            "between": _link(cluster.between),
            "inside": _link(cluster.inside),
        },
        "dense": _plan(advised, advised.advice.dense),
        "best": _plan(advised, advised.advice.best),
        "levels": [_level(advised, way) for way in advised.advice.dense.ways],
        "convergence": {
            "steps": course.steps,
            "gap": course.problem.gap,
            "workers": course.workers,
            "plain_bound": course.plain,
        },
        "codecs": [
            {
                "codec": str(m.codec),
                "bits_per_value": number(m.bits),
                "nmse": number(m.error),
                "unbiased": m.codec.unbiased,
                "problem": m.problem,
                "doubt": m.doubt,
                "law": law.document(course.plain),
                "measured": here.document(course.plain),
            }
            for m, law, here in zip(advised.measured, advised.laws, advised.here, strict=True)
        ],
    }


def _level(advised: Advised, dense: advisor.Way) -> dict[str, Any]:
    members, _ = advised.cluster.group(dense.level)
    ways = [way for way in advised.advice.ways if way.level == dense.level]
    balances = [b for b in advised.advice.balances if b.level == dense.level]
    return {
        "level": dense.level,
        "members": members,
        "dense_s": dense.time,
        "all_gather_limit_bits_per_value": advised.gather_limit(dense.level),
        "balanced_bits_per_value": {b.collective: number(b.bits) for b in balances},
        "ways": [
            {
                **_way(advised, way),
                "slower_than_dense": way.time > dense.time,
                "times_dense": number(text.ratio(way.time, dense.time)),
                **_steps(advised, advised.alone(way)),
            }
            for way in ways
        ],
    }


def _plan(advised: Advised, plan: advisor.Plan) -> dict[str, Any]:
    return {
        "ways": [_way(advised, way) for way in plan.ways],
        "communication_s": plan.communication,
        "coding_s": plan.coding,
        **_steps(advised, plan),
        "nmse": number(plan.error),
    }


def _way(advised: Advised, way: advisor.Way) -> dict[str, Any]:
    scheme = way.scheme
    return {
        "level": way.level,
        "collective": way.collective,
        "codec": None if scheme is None else scheme.name,
        "use": None if scheme is None else advised.uses.get(scheme.name),
        "bits_per_value": advised.work.bits if scheme is None else scheme.bits,
        "communication_s": way.time,
        "coding_s": way.coding,
    }


def _steps(advised: Advised, plan: advisor.Plan) -> dict[str, Any]:
    dense = advised.advice.dense
    return {
        "step_s": plan.step,
        "speedup": number(text.ratio(dense.step, plan.step)),
        "step_with_overlap_s": plan.hidden,
        "speedup_with_overlap": number(text.ratio(dense.hidden, plan.hidden)),
    }


def _link(link: advisor.Link | None) -> dict[str, float] | None:
    if link is None:
        return None
    return {"bytes_per_s": link.bandwidth, "latency_s": link.latency}
