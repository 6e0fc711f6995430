"""``gcodec encode``: convert files of tensors to .gcf files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.cli.render import text
from gcodec.errors import ParameterError

if TYPE_CHECKING:
    from gcodec.advisor.choose import Target
    from gcodec.arrays.nonfinite import NonFinite
    from gcodec.policy import Policy

_MAX_POLICY_BYTES = 1 << 20


@options.verb(
    "encode",
    ("Encode a dump to next.gcf, next to it.", "gcodec encode next.safetensors -c topk"),
    (
        "Encode all dumps of a directory, without counters, to another directory.",
        "gcodec encode run/ -c mxnet-2bit:threshold=auto -L '!*.num_batches' -o encoded/",
    ),
    (
        "Choose a codec for each tensor.",
        "gcodec encode grads.safetensors -c auto:nmse=0.01 -o auto.gcf",
    ),
    (
        "Use the codec that the rules of a file assign to each tensor.",
        "gcodec encode grads.safetensors --policy policy.json -o mixed.gcf",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="IN...", type=options.FILE)
@click.option(
    "-c",
    "--codec",
    "spec",
    metavar="SPEC",
    shell_complete=options.complete_encoder,
    help="A codec such as mxnet-2bit:threshold=auto, see gcodec codecs; or auto:nmse=0.01 or "
    "auto:bits=2, which choose a codec for each tensor by its statistics, for this nmse or these "
    "bits per value.",
)
@click.option(
    "-p",
    "--policy",
    "policy_file",
    type=click.File("rb"),
    metavar="FILE.json",
    help="Rules that assign a codec to each tensor, instead of --codec; the first match wins, as "
    'in {"*.bias": "raw", "*": "mxnet-2bit"}.',
)
@options.output(
    "A file for one IN, or a directory; default: next to IN, with the suffix .gcf; - is stdout."
)
@options.layers
@options.seed
@click.option(
    "--nonfinite",
    type=click.Choice(["raise", "zero", "propagate"]),
    default="raise",
    help="Refuse NaN and Inf, replace them by 0, or pass them to the codec.",
)
@options.own_key
@options.force
@options.outcome
def command(
    paths: tuple[str, ...],
    spec: str | None,
    policy_file: BinaryIO | None,
    output: str | None,
    layers: tuple[str, ...],
    seed: int,
    nonfinite: NonFinite,
    key: bytes | None,
    force: bool,
    outcome: Outcome,
) -> int:
    """Encode the tensors of files to .gcf files.

    IN is a .safetensors, .npz, .npy or .pt file, a folder of torch.distributed.checkpoint, a
    directory of such files, or a glob; - is stdin, whose format follows from its first bytes.
    Each tensor becomes a frame with its name, shape and dtype. --codec or --policy determines the
    codec. Integers, booleans and floats of 8 bits, such as counters, masks and quantized weights,
    are always stored unchanged: with lossless if that is the codec of the tensor, else with raw.

    With --codec lossless, a .safetensors file, or an index with its shards, becomes a file from
    which gcodec decode restores the same bytes, metadata and order included. Tensors of all dtypes
    are then encoded with lossless.
    """
    from gcodec.advisor.choose import Target
    from gcodec.analysis.groups import omissions
    from gcodec.cli import coding, files
    from gcodec.cli.render.output import omission_notes
    from gcodec.tensorfiles.dumps import open_dump

    policy = _target_or_policy(spec, policy_file)
    files.check_streams(paths, output, outcome.as_json)
    sources = files.inputs(paths, "dump", files.is_dump, stdin=True)
    targets = files.outputs(sources, output, ".gcf", force)
    written: list[dict[str, object]] = []
    for source, target in zip(sources, targets, strict=True):
        with (
            outcome.of(source),
            files.local_file(source) as readable,
            open_dump(files.tensors_file(readable), limits=outcome.limits) as dump,
        ):
            exact = coding.exact_codec(dump, policy, layers, nonfinite)
            omitted = omissions(dump, layers)
            if exact is not None:
                entries, omitted = dump.entries, {}
                frames = coding.exactly_encoded(dump, exact, outcome.limits, key)
            else:
                entries = coding.selected(dump, layers)
                codecs = [(entry, coding.codec_of(entry, policy)) for entry in entries]
                frames = coding.encoded(dump, codecs, seed, nonfinite, key)
            with files.written_file(target, ".gcf") as file:
                result = coding.write_frames(frames, file, entries, outcome.quiet)
            result = {"input": str(source), "output": str(target), **result}
            result["omitted"] = omitted
            written.append(result)
            lists_codecs = spec is None or isinstance(policy, Target)
            facts = (*files.summary(str(source), target, result), *_facts(result, lists_codecs))
            outcome.line(*facts, err=target == files.STREAM)
            outcome.notes(omission_notes(omitted))
    outcome.notes(_missed_targets(written))
    codec, rules = spec and str(policy), None
    if not isinstance(policy, Target):
        codec = spec and str(policy.rules[0].codec)
        rules = None if spec else policy.to_dict()
    return outcome.finish({"codec": codec, "policy": rules, "seed": seed, "files": written})


def _facts(result: dict[str, Any], lists_codecs: bool) -> Iterator[str]:
    """Yield the facts that follow the size of one output."""
    if result["values"]:
        yield from (f"{result['bits_per_value']:.2f} bits/value", f"{result['ratio']:.1f}x")
    if lists_codecs:
        yield ", ".join(f"{n} {codec}" for codec, n in result["codecs"].items())
    if names := result["integers"]:
        count = text.count(len(names), "tensor")
        yield f"{count} of integers, booleans or 8-bit floats as raw: {text.listed(names, 3)}"


def _missed_targets(written: list[dict[str, Any]]) -> list[str]:
    """Return notes on the tensors that miss the target of their codec."""
    by_target = text.gathered(
        (f"{missed['parameter']}={missed['target']!r}", f"{name} ({missed['reached']:.3g})")
        for result in written
        for name, missed in result["missed"].items()
    )
    return [
        f"{text.count(len(names), 'tensor')} cannot meet {target} and got the nearest: "
        f"{text.listed(names)}; strict=yes refuses such tensors"
        for target, names in by_target.items()
    ]


def _target_or_policy(spec: str | None, file: BinaryIO | None) -> Target | Policy:
    """Read ``--policy``, or convert ``--codec`` to a target or to a policy of one rule."""
    from gcodec.advisor.choose import Target
    from gcodec.policy import Policy, policy_of

    if spec is not None and file is None:
        is_target = spec.partition(":")[0] == "auto"
        return Target.parse(spec) if is_target else policy_of(spec)
    if spec is not None or file is None:
        raise click.UsageError("Pass either --codec SPEC or --policy FILE.json.")
    data = file.read(_MAX_POLICY_BYTES + 1)
    try:
        if len(data) > _MAX_POLICY_BYTES:
            raise ParameterError(f"policy: must be at most {_MAX_POLICY_BYTES} bytes of JSON")
        return Policy.from_json(data)
    except ParameterError as error:
        raise ParameterError(f"{file.name}: {error}") from None
