"""``gcodec encode``: convert files of tensors to .gcf files."""

from __future__ import annotations

import glob
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gcodec.cli import options
from gcodec.cli.outcome import CheckFailed, Outcome
from gcodec.cli.render import text
from gcodec.errors import ParameterError, Unsupported
from gcodec.limits import Limits
from gcodec.wire import primitives

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.advisor.choose import Target
    from gcodec.arrays.nonfinite import NonFinite
    from gcodec.codec import Codec
    from gcodec.payload import MissedTarget
    from gcodec.policy import Policy
    from gcodec.tensorfiles.entries import Array, Dump, Entry

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
@click.argument("files", nargs=-1, required=True, metavar="IN...", type=options.FILE)
@click.option(
    "-c",
    "--codec",
    "spec",
    metavar="SPEC",
    shell_complete=options.complete_spec,
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
@options.force
@options.limits
@options.quiet
@options.json
def command(
    files: tuple[str, ...],
    spec: str | None,
    policy_file: BinaryIO | None,
    output: str | None,
    layers: tuple[str, ...],
    seed: int,
    nonfinite: NonFinite,
    force: bool,
    limits: Limits,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encode the tensors of files to .gcf files.

    IN is a .safetensors, .npz, .npy or .pt file, a folder of torch.distributed.checkpoint, a
    directory of such files, or a glob; - is stdin, whose format follows from its first bytes.
    Each tensor becomes a frame with its name, shape and dtype. Its codec is that of --codec, or
    the one that --policy assigns to it. Integers and booleans, such as counters and masks, are
    always stored unchanged, with the codec raw.

    With --codec lossless, a .safetensors file, or an index with its shards, becomes a file from
    which gcodec decode restores the same bytes, metadata and order included.
    """
    from gcodec.advisor.choose import Target
    from gcodec.analysis.groups import selects
    from gcodec.cli.files import (
        STREAM,
        check_stdout,
        inputs,
        is_dump,
        local_file,
        outputs,
        written_file,
    )
    from gcodec.cli.render.output import note, omission_notes, print_document
    from gcodec.tensorfiles.dumps import open_dump

    policy = _aim_or_policy(spec, policy_file)
    check_stdout(output, as_json)
    from_stdin = files == (str(STREAM),)
    if from_stdin and output is None:
        raise click.UsageError("stdin has no name from which to derive OUT: pass -o OUT")
    sources = [STREAM] if from_stdin else inputs(files, "dump", is_dump)
    targets = outputs(sources, output, ".gcf", force)
    outcome = Outcome()
    written: list[dict[str, Any]] = []
    for source, target in zip(sources, targets, strict=True):
        with (
            outcome.of(source),
            local_file(source) as readable,
            open_dump(readable, limits=limits) as dump,
        ):
            codecs = []
            if not _is_exact(dump, policy, layers, nonfinite):
                codecs = [(entry, _codec_of(entry, policy)) for entry in _selected(dump, layers)]
            with written_file(target, ".gcf") as file:
                if _is_exact(dump, policy, layers, nonfinite):
                    result = _write_exact(dump, policy, file, limits, quiet or as_json)
                else:
                    result = _write(dump, codecs, file, seed, nonfinite, quiet or as_json)
            result = {"input": str(source), "output": str(target), **result}
            result["omitted"] = {n: why for n, why in dump.omitted.items() if selects(layers, n)}
            written.append(result)
            if not as_json and not quiet:
                lists_codecs = spec is None or isinstance(policy, Target)
                line = text.printable(_summary(result, lists_codecs))
                click.echo(line, err=target == STREAM)
                for line in omission_notes(result["omitted"]):
                    note(line)
    if as_json:
        document = {
            "codec": None
            if spec is None
            else str(policy if isinstance(policy, Target) else policy.rules[0].codec),
            "policy": None if spec is not None or isinstance(policy, Target) else policy.to_dict(),
            "seed": seed,
            "files": written,
        }
        print_document("encode", document, outcome)
    elif not quiet:
        for line in _missed_targets(written):
            note(line)
    return outcome.code


def _summary(result: dict[str, Any], lists_codecs: bool) -> str:
    """Return the line about one output."""
    parts = [f"{result['input']} -> {result['output']}", text.count(result["tensors"], "tensor")]
    parts += [text.count(result["values"], "value"), text.size(result["bytes"])]
    if result["values"]:
        parts += [f"{result['bits_per_value']:.2f} bits/value", f"{result['ratio']:.1f}x"]
    if lists_codecs:
        parts.append(", ".join(f"{n} {codec}" for codec, n in result["codecs"].items()))
    if names := result["integers"]:
        count = text.count(len(names), "tensor")
        parts.append(f"{count} of integers or booleans as raw: {text.listed(names, 3)}")
    return "   ".join(parts)


def _missed_targets(written: list[dict[str, Any]]) -> list[str]:
    """Return notes on the tensors that miss the target of their codec."""
    by_target: dict[str, list[str]] = {}
    for result in written:
        for name, missed in result["missed"].items():
            target = f"{missed['parameter']}={missed['target']!r}"
            by_target.setdefault(target, []).append(f"{name} ({missed['reached']:.3g})")
    return [
        f"{text.count(len(names), 'tensor')} cannot meet {target} and got the nearest: "
        f"{', '.join(names)}; strict=yes refuses such tensors"
        for target, names in by_target.items()
    ]


def _aim_or_policy(spec: str | None, file: BinaryIO | None) -> Target | Policy:
    """Read ``--policy``, or convert ``--codec`` to an aim or to a policy of one rule."""
    from gcodec.advisor.choose import Target
    from gcodec.codecs import parse
    from gcodec.policy import Policy

    if spec is not None and file is None:
        return Target.parse(spec) if spec.startswith("auto:") else Policy([{"codec": parse(spec)}])
    if spec is not None or file is None:
        raise click.UsageError("Pass either --codec SPEC or --policy FILE.json.")
    data = file.read(_MAX_POLICY_BYTES + 1)
    try:
        if len(data) > _MAX_POLICY_BYTES:
            raise ParameterError(f"policy: must be at most {_MAX_POLICY_BYTES} bytes of JSON")
        return Policy.from_json(data)
    except ParameterError as error:
        raise ParameterError(f"{file.name}: {error}") from None


def _codec_of(entry: Entry, policy: Target | Policy) -> Codec | Target:
    """Return the codec of a tensor, or the aim for which `_write` chooses one."""
    from gcodec.codecs import parse
    from gcodec.policy import Policy

    if entry.dtype in primitives.INTEGERS:
        return parse("raw")
    if isinstance(policy, Policy):
        return policy.codec(entry.name, entry.shape, entry.dtype)
    return policy


def _selected(dump: Dump, layers: tuple[str, ...]) -> list[Entry]:
    """Return the tensors to encode, or raise an error with the reason why there are none."""
    from gcodec.analysis.groups import selects

    entries = [entry for entry in dump.entries if selects(layers, entry.name)]
    if not dump.entries:
        raise Unsupported("the file contains no tensors")
    if not entries:
        raise ParameterError(f"no tensor matches --layers {' '.join(layers)}")
    for entry in entries:
        if entry.dtype not in primitives.DTYPE_CODES:
            raise Unsupported(
                f"tensor {entry.name!r} is {entry.dtype}, and frames store "
                f"{', '.join(primitives.DTYPE_CODES)}; exclude it with -L "
                + shlex.quote(f"!{glob.escape(entry.name)}")
            )
    return entries


def _write(
    dump: Dump,
    codecs: list[tuple[Entry, Codec | Target]],
    target: Path,
    seed: int,
    nonfinite: NonFinite,
    quiet: bool,
) -> dict[str, Any]:
    """Write one .gcf file, a tensor at a time, and return its part of the JSON document."""
    from gcodec import encode
    from gcodec.advisor.choose import Target
    from gcodec.cli.render.output import progress
    from gcodec.feedback import derive_seed
    from gcodec.tensorfiles.atomic import atomic_write

    values = nbytes = raw_nbytes = 0
    counts: Counter[str] = Counter()
    missed: dict[str, dict[str, Any]] = {}
    total = sum(entry.size for entry, _ in codecs)
    with progress(target.name, total, quiet=quiet) as advance, atomic_write(target) as file:
        for entry, codec in codecs:
            array = dump.load(entry)
            tensor_seed = derive_seed(seed, name=entry.name)
            reports: list[MissedTarget] = []
            try:
                if isinstance(codec, Target):
                    codec = _choose(array, codec, tensor_seed, nonfinite)
                frame = encode(
                    array,
                    codec,
                    seed=tensor_seed,
                    name=entry.name,
                    nonfinite=nonfinite,
                    report=reports.append,
                )
            except ParameterError as error:
                raise _refusal(entry, array, error) from None
            file.write(frame)
            if reports:
                missed[entry.name] = reports[0]._asdict()
            counts[str(codec)] += 1
            values += array.size
            nbytes += len(frame)
            raw_nbytes += array.nbytes
            advance(array.size)
    return {
        "tensors": len(codecs),
        "codecs": dict(counts),
        "integers": [entry.name for entry, _ in codecs if entry.dtype in primitives.INTEGERS],
        "values": values,
        "bytes": nbytes,
        "bits_per_value": text.ratio(8 * nbytes, values),
        "ratio": text.ratio(raw_nbytes, nbytes),
        "missed": missed,
    }


def _is_exact(
    dump: Dump, policy: Target | Policy, layers: tuple[str, ...], nonfinite: NonFinite
) -> bool:
    """Whether the output decodes to the bytes of the file: a .safetensors file with lossless."""
    from gcodec.policy import Policy

    if not isinstance(policy, Policy) or dump.format != "safetensors" or nonfinite == "zero":
        return False
    rules = policy.rules
    is_one = len(rules) == 1 and rules[0].to_dict().keys() == {"codec"}
    return is_one and rules[0].codec.keeps_every_bit and not layers


def _write_exact(
    dump: Dump, policy: Target | Policy, target: Path, limits: Limits, quiet: bool
) -> dict[str, Any]:
    """Write one .gcf file that decodes to the bytes of the dump; see `_write`."""
    import numpy as np

    from gcodec import encode
    from gcodec.cli.render.output import progress
    from gcodec.policy import Policy
    from gcodec.tensorfiles.atomic import atomic_write
    from gcodec.tensorfiles.exact_file import originals
    from gcodec.tensorfiles.structure import FILE_PREFIX

    assert isinstance(policy, Policy)
    codec = policy.rules[0].codec
    tensors = values = nbytes = raw_nbytes = 0
    total = sum(entry.size for entry in dump.entries)
    with progress(target.name, total, quiet=quiet) as advance, atomic_write(target) as file:
        for name, head, original in originals(dump.path):
            frame = encode(np.frombuffer(head, np.uint8), codec, name=FILE_PREFIX + name)
            file.write(frame)
            nbytes += len(frame)
            if original is None:
                continue
            for tensor in original.tensors:
                frame = encode(original.load(tensor, limits), codec, name=tensor.name)
                file.write(frame)
                tensors, values = tensors + 1, values + tensor.size
                nbytes, raw_nbytes = nbytes + len(frame), raw_nbytes + tensor.nbytes
                advance(tensor.size)
    return {
        "tensors": tensors,
        "codecs": {str(codec): tensors},
        "integers": [],
        "values": values,
        "bytes": nbytes,
        "bits_per_value": text.ratio(8 * nbytes, values),
        "ratio": text.ratio(raw_nbytes, nbytes),
        "missed": {},
    }


def _choose(array: Array, aim: Target, seed: int, nonfinite: NonFinite) -> Codec:
    """Choose a codec for the values that it will receive."""
    from gcodec import choose
    from gcodec.arrays.nonfinite import with_policy
    from gcodec.arrays.source import inspect, outlet

    if nonfinite == "propagate":
        allowed = "raise or zero when gcodec chooses the codec"
        raise ParameterError.of("nonfinite", nonfinite, allowed)
    tensor = inspect(array, "x").read()
    if nonfinite == "zero" and (finite := with_policy(tensor, "zero")) is not tensor:
        array = outlet(finite.values, tensor.dtype).reshape(tensor.shape)
    return choose(array, max_nmse=aim.max_nmse, max_bits=aim.max_bits, seed=seed)


def _refusal(entry: Entry, array: Array, error: Exception) -> Exception:
    """Return the error for a tensor that the encoder refuses."""
    from gcodec.analysis.stats import find_nonfinite
    from gcodec.arrays.source import inspect

    # The codec sees float32 values: a float64 outside of their range becomes infinite.
    count, indices = find_nonfinite(inspect(array, "x").read(integers=True).values)
    if not count:
        return ParameterError(f"tensor {entry.name!r}: {error}")
    return CheckFailed(
        f"tensor {entry.name!r} contains {count} NaN or Inf, the first at flat index "
        f"{indices[0]}; --nonfinite zero replaces them by 0"
    )
