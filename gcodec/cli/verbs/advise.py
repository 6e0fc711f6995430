"""``gcodec advise``: recommend whether and how to compress gradients on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import click

from gcodec.analysis.settings import Settings
from gcodec.cli import options
from gcodec.cli.outcome import EXIT_CODES, Outcome

_LARGER = 2  # ratio of --params to the values of SOURCE from which on its tensors are too small
_MIN_ROWS, _MAX_ROWS = 1 << 6, 1 << 11  # of a synthetic matrix
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "float64": 64}


def _latency(name: str, place: str) -> Callable[[options.Function], options.Function]:
    text = f"Latency of a message {place}."
    return click.option(name, type=options.DURATION, default="0s", help=text)


def _coding_speed(name: str, noun: str) -> Callable[[options.Function], options.Function]:
    text = (
        f"{noun} speed of a GPU, in bytes of float32, for all codecs and schemes. "
        "Default: that of --machine."
    )
    return click.option(name, type=options.CODING_SPEED, help=text)


@options.verb(
    "advise",
    (
        "Advise for a model of a billion parameters in float16, on 64 nodes with 8 GPUs.",
        "gcodec advise --params 1B --dtype float16 --step-time 100ms --nodes 64 --gpus 8 "
        "--between 100Gbit/s --inside 600GB/s",
    ),
    (
        "Compare two codecs, measured on your own gradients.",
        "gcodec advise grads.safetensors --step-time 1ms --nodes 4 --between 1Gbit/s "
        "--between-latency 20us -c minifloat -c topk:ratio=0.1",
    ),
    (
        "Use the coding speeds of another machine, one core of an AMD EPYC (Zen 4).",
        "gcodec advise --params 1B --step-time 100ms --nodes 4 --between 10Gbit/s "
        "--machine epyc-zen4",
    ),
    (
        "Consider a foreign scheme by its bits per value, and the time of coding on a GPU.",
        "gcodec advise --params 7B --step-time 2s --nodes 16 --between 25Gbit/s "
        "--bits rank16=0.25 --encode 50GB/s --decode 80GB/s",
    ),
    exits={code: EXIT_CODES[code] for code in (3, 4, 5)},
)
@click.argument("source", required=False, metavar="[SOURCE]", type=options.FILE)
@click.option(
    "--step-time",
    type=options.DURATION,
    required=True,
    help="Time of a forward and backward pass, such as 100ms.",
)
@click.option(
    "--params",
    type=options.COUNT,
    help="Number of values of the gradient, such as 7B or 125M. Default: that of SOURCE.",
)
@click.option("--nodes", type=options.COUNT, default="1", help="Number of nodes.")
@click.option("--gpus", type=options.COUNT, default="1", help="Number of GPUs of each node.")
@click.option(
    "--between",
    type=options.SPEED,
    help="Speed of a node's link to the other nodes in each direction, such as 100Gbit/s or "
    "12.5GB/s. The GPUs of the node share this link.",
)
@click.option(
    "--inside",
    type=options.SPEED,
    help="Speed of a GPU's link to the other GPUs of its node in each direction, such as 450GB/s.",
)
@_latency("--between-latency", "between nodes, such as 20us")
@_latency("--inside-latency", "inside a node")
@click.option(
    "--dtype",
    type=click.Choice(list(_BITS)),
    help="Dtype of uncompressed gradients. Default: that of SOURCE, or float32.",
)
@click.option(
    "--overlap",
    type=options.Number(0, 1),
    default=1.0,
    metavar="SHARE",
    help="Share of the step time during which communication can proceed.",
)
@options.codecs(
    "Codec to consider; repeatable. Default: all codecs, with default parameters, or those that "
    "--machine has speeds for."
)
@click.option(
    "--bits",
    "other_schemes",
    type=options.NAMED_BITS,
    multiple=True,
    help="Another scheme to consider, by its bits per value, such as powersgd=0.25; repeatable. "
    "It is never recommended, because its nmse is unknown.",
)
@click.option(
    "--machine",
    default="this",
    metavar="NAME",
    shell_complete=options.complete_machine,
    help="Machine whose coding speeds count: this one, which is measured in one or two seconds; a "
    "name in the table of docs/advise.md; or a .json file that gcodec bench --json printed.",
)
@_coding_speed("--encode", "Encoding")
@_coding_speed("--decode", "Decoding")
@click.option(
    "--tolerance",
    type=options.Number(0),
    default=0.05,
    metavar="SHARE",
    help="Share by which a step may exceed the shortest one if it preserves more of the gradient.",
)
@click.option(
    "--steps",
    type=options.COUNT,
    default="10k",
    help="Number of training steps, for the bounds on convergence.",
)
@click.option(
    "--gap",
    type=options.Number(1e-30, 1e30),
    default=1.0,
    metavar="X",
    help="Largest decrease of the loss, as a multiple of G^2/L for gradients of norm G and "
    "Lipschitz constant L; for the bounds on convergence.",
)
@options.sample(1_000_000, "Measure larger tensors on N of their values.")
@options.layers
@options.seed
@options.limits
@options.quiet
@options.json
@options.settings
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
    other_schemes: tuple[tuple[str, float], ...],
    machine: str,
    encode: float | None,
    decode: float | None,
    tolerance: float,
    steps: int,
    gap: float,
    settings: Settings,
    quiet: bool,
    as_json: bool,
) -> int:
    """Recommend whether and how to compress gradients on a cluster.

    The GPUs of each node sum their gradients first. Then the nodes sum the results, each GPU of a
    node with its share, and the GPUs of each node gather the sums. gcodec computes the time of
    communication in rings. Uncompressed gradients are summed on the way. Messages of codecs are
    either gathered by all workers (all-gather), or exchanged in shares, summed, and sent once more
    (two-phase). Coding takes as long as on --machine. gcodec recommends no codec if a GPU's share
    of the link is faster than "pays below", in Gbit/s: there it is faster to send the gradient, as
    gcodec bench shows.

    gcodec measures bits per value and nmse of codecs on SOURCE. SOURCE is a dump of gradients, as
    for gcodec inspect; a synthetic matrix with the scales and the spectrum of real gradients, such
    as synthetic:shape=4096x4096; or independent values, such as
    synthetic:gennorm,beta=0.8,n=1000000. The default is a synthetic matrix as large as those of a
    transformer with --params values, but at most 2048x2048. The output names codecs that these
    values cannot judge.

    The effect of a codec on convergence follows from its law, which holds for all gradients, and
    from the measured nmse. With error feedback, delta counts: the guaranteed share of a gradient's
    energy that arrives. Without feedback, omega counts: the relative variance of an unbiased
    codec.
    """
    from gcodec import advisor
    from gcodec.advisor.machines import find_machine
    from gcodec.analysis.advice import (
        ClusterAdvice,
        Training,
        measure_dump,
        measure_machine,
        measure_synthetic,
    )
    from gcodec.cli.files import one_dump
    from gcodec.cli.render.advise import document, show
    from gcodec.cli.render.output import print_document, progress, stdout
    from gcodec.codec import registered
    from gcodec.codecs import parse_encoder

    if between is None and nodes > 1:
        raise click.UsageError(f"--between is missing: {nodes} nodes need a link")
    if inside is None and gpus > 1:
        raise click.UsageError(f"--inside is missing: {gpus} GPUs of a node need a link")
    if source is None:
        if params is None:
            raise click.UsageError("give --params N, or a SOURCE to count them in")
        source = _synthetic(params)
    cluster = advisor.Cluster(
        nodes,
        gpus,
        None if between is None else advisor.Link(between, between_latency),
        None if inside is None else advisor.Link(inside, inside_latency),
    )
    coder = None if machine == "this" else find_machine(machine)
    default_specs = () if other_schemes else registered() if coder is None else coder.speeds
    codecs = list(dict.fromkeys(parse_encoder(spec) for spec in specs or default_specs))
    settings = settings._replace(
        codecs=tuple(codecs), progress=partial(progress, quiet=quiet or as_json)
    )
    if source.startswith("synthetic:"):
        origin, measured = measure_synthetic(source, settings)
    else:
        path, outcome = one_dump(source), Outcome("advise", settings.limits, as_json=as_json)
        with outcome.of(path):
            origin, measured = measure_dump(path, settings)
        if outcome.code:
            return outcome.finish({"source": {"name": path.name}, "codecs": []})
    if not codecs or not cluster.levels or (encode is not None and decode is not None):
        coder = None  # no speed of a codec counts
    elif coder is None:
        # A larger model than that of SOURCE has larger tensors, which take less time per value.
        is_larger = params is not None and params >= _LARGER * origin.values
        timed = _synthetic(params) if params is not None and is_larger else source
        coder = measure_machine(timed, settings)
    work = advisor.Work(
        values=params or origin.values,
        compute=step_time,
        bits=origin.bits if dtype is None else _BITS[dtype],
        overlap=overlap,
        encode=math.inf if encode is None else encode,
        decode=math.inf if decode is None else decode,
    )
    training = Training(advisor.Problem(gap=gap), steps, nodes if nodes > 1 else gpus)
    advice = ClusterAdvice(
        cluster, work, training, tolerance, origin, measured, other_schemes, coder
    )
    if as_json:
        print_document("advise", document(advice))
    else:
        show(advice, stdout(), quiet=quiet)
    return 0


def _synthetic(params: int) -> str:
    """Return a matrix of the width of a transformer that has d/128 layers of 12·d² values."""
    width = 2 ** round(math.log2((128 / 12 * params) ** (1 / 3)))
    rows = min(max(width, _MIN_ROWS), _MAX_ROWS, math.isqrt(params))
    return f"synthetic:shape={rows}x{min(rows, params // rows)}"
