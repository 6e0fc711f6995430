"""What was measured of a dump as JSON, and as flat records for CSV."""

from __future__ import annotations

from typing import Any

from gcodec.analysis.stats import SPAN
from gcodec.cli.document import number
from gcodec.cli.measure import Contents, Measured, Sampled, Task
from gcodec.cli.rows import Cost, Row, together


def document(
    contents: Contents, rows: list[Row], tensors: list[Measured], task: Task
) -> dict[str, Any]:
    """Return the report on a dump for a JSON document."""
    total = Row(tensors) if tensors else None
    chosen = [] if task.budget is None else [row.best(task.budget) for row in rows]
    best = together(pair for pairs in chosen for pair in pairs)
    return {
        "file": str(contents.path),
        "kind": "dump",
        "format": contents.format,
        "bytes": contents.nbytes,
        "metadata": contents.metadata,
        "sample": {"values_per_tensor": task.most, "seed": task.seed},
        "budget": None if task.budget is None else task.budget._asdict(),
        "tensors": [tensor_document(tensor, task) for tensor in tensors],
        "groups": [
            {
                "name": row.name,
                "tensors": [member.entry.name for member in row.members],
                **_best_document(row, task),
            }
            for row in rows
        ],
        "total": {
            "values": sum(tensor.size for tensor in tensors),
            "nonfinite": sum(tensor.nonfinite for tensor in tensors),
            "entropy_bits": None if total is None else number(total.entropy),
            "codecs": [
                {
                    "codec": str(codec),
                    **_cost(None if total is None else together(total.trials(i))),
                }
                for i, codec in enumerate(task.codecs)
            ],
            "best": None if best is None else _cost(best),
        },
    }


def tensor_document(tensor: Measured, task: Task) -> dict[str, Any]:
    """Return what is known of a tensor for a JSON document."""
    entry, summary, sampled = tensor.entry, tensor.summary, tensor.sampled
    known: dict[str, Any] = {
        "name": entry.name,
        "shape": list(entry.shape),
        "dtype": entry.dtype,
        "values": tensor.size,
    }
    if summary is None or sampled is None:
        return known | {"note": f"not a gradient: {entry.dtype}"}
    return (
        known
        | {
            "measured": sampled.size,
            "rms": number(summary.rms),
            "max_abs": number(summary.max_abs),
            "zeros": summary.zeros,
            "nonfinite": summary.nonfinite,
            "first_nonfinite": list(tensor.places),
            "histogram": {"span_in_rms": [-SPAN, SPAN], "counts": list(sampled.histogram)},
            "fits": _fits(sampled),
            "entropy": {
                "nmse": number(sampled.entropy.error),
                "bits_per_value": number(sampled.entropy.bits),
                "step": number(sampled.entropy.step),
            },
            "codecs": [
                {"codec": str(codec), "problem": trial}
                if isinstance(trial, str)
                else {
                    "codec": str(codec),
                    "bytes": trial.nbytes,
                    "bits_per_value": number(trial.bits),
                    "nmse": number(trial.error),
                }
                for codec, trial in zip(task.codecs, sampled.trials, strict=True)
            ],
        }
        | _best_document(Row([tensor]), task)
    )


def record(tensor: Measured, task: Task) -> dict[str, Any]:
    """Return the same as one flat record: of the fits the nearest."""
    entry, summary, sampled = tensor.entry, tensor.summary, tensor.sampled
    nearest = sampled.shapes[0] if sampled is not None and sampled.shapes else None
    best = together(Row([tensor]).best(task.budget)) if task.budget is not None else None
    found: dict[str, Any] = {
        "tensor": entry.name,
        "shape": "x".join(map(str, entry.shape)),
        "dtype": entry.dtype,
        "values": tensor.size,
        "measured": None if sampled is None else sampled.size,
        "rms": None if summary is None else number(summary.rms),
        "max_abs": None if summary is None else number(summary.max_abs),
        "zeros": None if summary is None else summary.zeros,
        "nonfinite": None if summary is None else summary.nonfinite,
        "fit": None if nearest is None else nearest.name,
        "beta": None if nearest is None else number(nearest.shape.beta),
        "w2_in_rms": None if nearest is None else number(nearest.w2),
        "ks": None if nearest is None else number(nearest.ks),
        "entropy_bits": None if sampled is None else number(sampled.entropy.bits),
    }
    for place, codec in enumerate(task.codecs):
        trial = sampled.trials[place] if sampled is not None else ""
        known = None if isinstance(trial, str) else trial
        found[f"{codec} bits_per_value"] = None if known is None else number(known.bits)
        found[f"{codec} nmse"] = None if known is None else number(known.error)
    if task.budget is not None:
        found["best"] = None if best is None else best.codec
        found["best_bits_per_value"] = None if best is None else number(best.bits)
        found["best_nmse"] = None if best is None else number(best.error)
    return found


def _fits(sampled: Sampled) -> list[dict[str, Any]]:
    return [
        {
            "distribution": fit.name,
            "method": fit.method,
            "beta": number(fit.shape.beta),
            "alpha": number(fit.shape.alpha),
            "sigma": number(fit.shape.sigma),
            "w2_in_rms": number(fit.w2),
            "ks": number(fit.ks),
        }
        for fit in sampled.shapes
    ]


def _best_document(row: Row, task: Task) -> dict[str, Any]:
    if task.budget is None:
        return {}
    cost = together(row.best(task.budget))
    return {"best": None if cost is None else {"codec": cost.codec, **_cost(cost)}}


def _cost(cost: Cost | None) -> dict[str, Any]:
    if cost is None:
        return {"bits_per_value": None, "nmse": None}
    return {"bits_per_value": number(cost.bits), "nmse": number(cost.error)}
