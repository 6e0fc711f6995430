"""``gcodec advise``: whether to compress gradients on a cluster, where, and with what."""

from __future__ import annotations

import click

from gcodec.cli.completion import FILE, complete_spec
from gcodec.cli.options import json_option, layers_option, limit_options, quiet_option, seed_option
from gcodec.cli.quantities import count, duration, named_bits, speed
from gcodec.cli.verb import EXIT_CODES, Verb

_SIDES = 1 << 6, 1 << 11  # of a drawn matrix: the least, where there are as many values
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}


@click.command(
    cls=Verb,
    name="advise",
    examples=[
        (
            "A model of a billion parameters in float16, on 64 nodes with 8 GPUs.",
            "gcodec advise --params 1B --dtype float16 --step-time 100ms --nodes 64 --gpus 8 "
            "--between 100Gbit/s --inside 600GB/s",
        ),
        (
            "Two codecs, by what they make of one's own gradients.",
            "gcodec advise grads.safetensors --step-time 1ms --nodes 4 --between 1Gbit/s "
            "--between-latency 20us -c minifloat -c topk:ratio=0.1",
        ),
        (
            "What gcodec does not have, by its bits per value, where a GPU takes time to code.",
            "gcodec advise --params 7B --step-time 2s --nodes 16 --between 25Gbit/s "
            "--bits rank16=0.25 --encode 50GB/s --decode 80GB/s",
        ),
    ],
    exits={code: EXIT_CODES[code] for code in (3, 4, 5)},
)
@click.argument("source", required=False, metavar="[SOURCE]", type=FILE)
@click.option(
    "--step-time",
    callback=duration,
    required=True,
    metavar="TIME",
    help="Of a forward and backward pass, such as 100ms.",
)
@click.option(
    "--params",
    callback=count,
    metavar="N",
    help="Values of the gradient, such as 7B or 125M. Default: those of SOURCE.",
)
@click.option(
    "--nodes",
    callback=count,
    default="1",
    show_default=True,
    metavar="N",
    help="Machines that share the work.",
)
@click.option(
    "--gpus", callback=count, default="1", show_default=True, metavar="N", help="Of each node."
)
@click.option(
    "--between",
    callback=speed,
    metavar="SPEED",
    help="Of a node's link to the others, each way, which its GPUs share: 100Gbit/s, 12.5GB/s.",
)
@click.option(
    "--inside",
    callback=speed,
    metavar="SPEED",
    help="Of a GPU's link to the others of its node, each way, such as 450GB/s.",
)
@click.option(
    "--between-latency",
    callback=duration,
    default="0s",
    show_default=True,
    metavar="TIME",
    help="Of a message between nodes, such as 20us.",
)
@click.option(
    "--inside-latency",
    callback=duration,
    default="0s",
    show_default=True,
    metavar="TIME",
    help="Of a message inside a node.",
)
@click.option(
    "--dtype",
    type=click.Choice(list(_BITS)),
    help="Of gradients that are not compressed. Default: that of SOURCE, or float32.",
)
@click.option(
    "--overlap",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    metavar="SHARE",
    help="Share of the step time that communication may run beside.",
)
@click.option(
    "-c",
    "--codec",
    "specs",
    multiple=True,
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Codec to look at; repeatable. Default: all, with their default parameters.",
)
@click.option(
    "--bits",
    "named",
    callback=named_bits,
    multiple=True,
    metavar="NAME=BITS",
    help="Something else to look at, by its bits per value, such as powersgd=0.25; repeatable. It "
    "is not advised, as its error is not known.",
)
@click.option(
    "--encode",
    callback=speed,
    metavar="SPEED",
    help="At which a GPU encodes, in bytes of float32. Default: encoding is not counted.",
)
@click.option(
    "--decode",
    callback=speed,
    metavar="SPEED",
    help="At which a GPU decodes, in bytes of float32. Default: decoding is not counted.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="How much longer than the shortest a step may be if that loses less of the gradient.",
)
@click.option(
    "--steps",
    callback=count,
    default="10k",
    show_default=True,
    metavar="N",
    help="Of the training, for the bounds on convergence.",
)
@click.option(
    "--gap",
    type=click.FloatRange(1e-30, 1e30),
    default=1.0,
    show_default=True,
    metavar="X",
    help="How far the loss can fall, as a multiple of G^2/L for gradients of norm G and Lipschitz "
    "constant L; for the bounds on convergence.",
)
@click.option(
    "--sample",
    "most",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Measure larger tensors on N of their values.",
)
@layers_option
@seed_option
@limit_options
@quiet_option
@json_option
def command(
    source: str | None,
    step_time: float,
    params: int | None,
    nodes: int,
    gpus: int,
    between: float | None,
    inside: float | None,
    between_latency: float,
    inside_latency: float,
    dtype: str | None,
    overlap: float,
    specs: tuple[str, ...],
    named: tuple[tuple[str, float], ...],
    encode: float | None,
    decode: float | None,
    tolerance: float,
    steps: int,
    gap: float,
    most: int,
    layers: tuple[str, ...],
    seed: int,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Tell whether to compress gradients on a cluster, where, and with what.

    Gradients are added up inside each node first, then between nodes, each GPU of a node with its
    share, and then gathered inside. Costs are those of rings: what is not compressed is summed on
    the way, messages of codecs are either gathered by all (all-gather) or by shares, summed, and
    sent once more (two-phase).

    Bits per value and errors of codecs are measured on SOURCE: a dump of gradients, see gcodec
    inspect; or a drawn matrix, such as synthetic:shape=4096x4096, with the scales and the spectrum
    of real gradients: by default as large as those of a transformer with --params values, but
    2048x2048 at most; or independent values, such as synthetic:gennorm,beta=0.8,n=1000000. Codecs
    that cannot be judged on these values are named.

    A codec's effect on convergence follows from its law, which holds for all gradients, and from
    what was measured here: delta, the share of a gradient's energy that surely arrives, for use
    with error feedback; omega, the relative variance of an unbiased codec, for use without.
    """
    import math
    from pathlib import Path

    from gcodec import advisor
    from gcodec.cli import schemes
    from gcodec.cli.advice import Advised, Asked
    from gcodec.cli.document import print_document
    from gcodec.cli.render.advice_document import document
    from gcodec.cli.render.advice_report import show
    from gcodec.cli.render.table import stdout
    from gcodec.codec import registered
    from gcodec.codecs import parse
    from gcodec.limits import Limits

    _need("--between", between, nodes, "nodes")
    _need("--inside", inside, gpus, "GPUs of a node")
    if source is None and params is None:
        raise click.UsageError("give --params N, or a SOURCE to count them in")
    cluster = advisor.Cluster(
        nodes,
        gpus,
        None if between is None else advisor.Link(between, between_latency),
        None if inside is None else advisor.Link(inside, inside_latency),
    )
    chosen = specs or (() if named else tuple(registered()))
    codecs = list(dict.fromkeys(parse(spec) for spec in chosen))
    silent = quiet or as_json
    if source is None:
        assert params is not None
        source = _drawn(params)
    if source.startswith("synthetic:"):
        origin, measured = schemes.of_synthetic(source, codecs, seed, quiet=silent)
    else:
        limits = Limits(max_elems, max_bytes)
        origin, measured = schemes.of_dump(
            Path(source), codecs, layers, most, seed, limits, quiet=silent
        )
    work = advisor.Work(
        values=params or origin.values,
        compute=step_time,
        bits=origin.bits if dtype is None else _BITS[dtype],
        overlap=overlap,
        encode=math.inf if encode is None else encode / 4,
        decode=math.inf if decode is None else decode / 4,
    )
    asked = Asked(cluster, work, tolerance, advisor.Problem(gap=gap), steps)
    advised = Advised(asked, origin, measured, named)
    if as_json:
        print_document("advise", document(advised))
    else:
        show(advised, stdout(), quiet=quiet)
    return 0


def _drawn(params: int) -> str:
    """Return a matrix of the width of a transformer: of d/128 layers, each with 12·d² values."""
    import math

    width = 2 ** round(math.log2((128 / 12 * params) ** (1 / 3)))
    rows = min(max(width, _SIDES[0]), _SIDES[1], math.isqrt(params))
    return f"synthetic:shape={rows}x{min(rows, params // rows)}"


def _need(option: str, link: float | None, members: int, what: str) -> None:
    if link is None and members > 1:
        raise click.UsageError(f"{option} is missing: {members} {what} need a link")
