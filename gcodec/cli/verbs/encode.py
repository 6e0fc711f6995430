"""``gcodec encode``: a file of tensors to a .gcf file, frame after frame."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gcodec.cli.completion import FILE, complete_spec
from gcodec.cli.options import (
    force_option,
    json_option,
    layers_option,
    limit_options,
    quiet_option,
    seed_option,
)
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.advisor.choose import Aim
    from gcodec.arrays.intake import NonFinite
    from gcodec.codec import Codec
    from gcodec.payload import MissedTarget
    from gcodec.policy import Policy
    from gcodec.tensorfiles.entries import Array, Dump, Entry

_AUTO = "auto:"  # a codec chosen for each tensor
_MOST_POLICY_BYTES = 1 << 20  # a larger file is something else


@click.command(
    cls=Verb,
    name="encode",
    examples=[
        ("Encode a dump to next.gcf, beside it.", "gcodec encode next.safetensors -c topk"),
        (
            "All dumps of a directory to another one, but no counters.",
            "gcodec encode run/ -c mxnet-2bit:threshold=auto -L '!*.num_batches' -o encoded/",
        ),
        (
            "A codec chosen for each tensor.",
            "gcodec encode grads.safetensors -c auto:err=0.01 -o auto.gcf",
        ),
        (
            "A codec for each tensor, by the rules of a file.",
            "gcodec encode grads.safetensors --policy policy.json -o mixed.gcf",
        ),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="IN...", type=FILE)
@click.option(
    "-c",
    "--codec",
    "spec",
    metavar="SPEC",
    shell_complete=complete_spec,
    help="Such as mxnet-2bit:threshold=auto, see gcodec codecs; or auto:err=0.01 or auto:bits=2: "
    "chosen for each tensor, by its statistics, for this error or these bits per value.",
)
@click.option(
    "-p",
    "--policy",
    "policy_file",
    type=click.File("rb"),
    metavar="FILE.json",
    help="Instead of --codec: rules for which codec each tensor gets, the first match wins, as in "
    '{"*.bias": "raw", "*": "mxnet-2bit"}.',
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=FILE,
    help="A file for one IN, or a directory; default: beside IN, with the suffix .gcf.",
)
@layers_option
@seed_option
@click.option(
    "--nonfinite",
    type=click.Choice(["raise", "zero", "propagate"]),
    default="raise",
    show_default=True,
    help="Refuse NaN and Inf, replace them by 0, or leave them to the codec.",
)
@force_option
@limit_options
@quiet_option
@json_option
def command(
    files: tuple[str, ...],
    spec: str | None,
    policy_file: BinaryIO | None,
    output: str | None,
    layers: tuple[str, ...],
    seed: int,
    nonfinite: NonFinite,
    force: bool,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Encode the tensors of files to .gcf files.

    IN is a .safetensors, .npz, .npy or .pt file, a directory of them, or a glob. Every tensor
    becomes a frame that keeps its name, shape and dtype. The codec is that of --codec, or for
    each tensor that of --policy. Integers and booleans, such as counters and masks, always travel
    unchanged, with the codec raw.
    """
    from gcodec.advisor.choose import Aim
    from gcodec.cli import inputs, outputs, text
    from gcodec.cli.document import print_document
    from gcodec.cli.outcome import Outcome
    from gcodec.limits import Limits
    from gcodec.payload import MissedTarget
    from gcodec.tensorfiles.dumps import open_dump

    policy = _aim_or_policy(spec, policy_file)
    sources = inputs.files(files, "dump", lambda path: not inputs.is_frames(path))
    targets = outputs.plan(sources, output, ".gcf")
    outputs.refuse_existing(targets, force)
    limits = Limits(max_elems, max_bytes)
    outcome = Outcome()
    written: list[dict[str, Any]] = []
    missed: list[tuple[str, MissedTarget]] = []
    for source, target in zip(sources, targets, strict=True):
        with outcome.of(source), open_dump(source, limits=limits) as dump:
            chosen = [(entry, _wanted(policy, entry)) for entry in _chosen(dump, layers)]
            target.parent.mkdir(parents=True, exist_ok=True)
            done = _write(dump, chosen, target, seed, nonfinite, quiet or as_json)
            written.append(done)
            missed += [(name, MissedTarget(**each)) for name, each in done["missed"].items()]
            if not as_json and not quiet:
                tensors = text.count(len(chosen), "tensor")
                values = text.count(done["values"], "value")
                line = f"{source} -> {target}   {tensors}   {values}   {text.size(done['bytes'])}"
                if done["values"]:
                    line += f"   {done['bits_per_value']:.2f} bits/value   {done['ratio']:.1f}x"
                if spec is None or isinstance(policy, Aim):
                    counts = (f"{number} {name}" for name, number in done["codecs"].items())
                    line += f"   {', '.join(counts)}"
                if names := done["integers"]:
                    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                    kept = text.count(len(names), "tensor")
                    line += f"   {kept} of integers or booleans as raw: "
                    line += ", ".join(names[:3]) + more
                click.echo(text.printable(line))
    if as_json:
        document = {
            "codec": None if spec is None else _spelled(policy),
            "policy": None if spec is not None or isinstance(policy, Aim) else policy.to_dict(),
            "seed": seed,
            "files": written,
        }
        print_document("encode", document, outcome)
    elif missed and not quiet:
        _note_missed(missed)
    return outcome.code


def _note_missed(missed: list[tuple[str, MissedTarget]]) -> None:
    """Name the tensors that got another error than their codec aims at, or other bits."""
    from gcodec.cli import text
    from gcodec.cli.notes import note

    by_target: dict[str, list[str]] = {}
    for name, each in missed:
        by_target.setdefault(f"{each.parameter}={each.target!r}", []).append(
            f"{name} ({each.reached:.3g})"
        )
    for target, names in by_target.items():
        note(
            f"{text.count(len(names), 'tensor')} cannot meet {target} and got the nearest: "
            f"{', '.join(names)}; strict=yes refuses such tensors"
        )


def _aim_or_policy(spec: str | None, file: BinaryIO | None) -> Aim | Policy:
    """Read what codecs are to be chosen for, or which each tensor has."""
    from gcodec.advisor.choose import Aim

    if spec is not None and spec.startswith(_AUTO) and file is None:
        return Aim.parse(spec)
    return _policy(spec, file)


def _wanted(policy: Aim | Policy, entry: Entry) -> Codec | Aim:
    """Return the codec of a tensor, or what to choose one for when its values are there."""
    from gcodec.codecs import parse
    from gcodec.policy import Policy
    from gcodec.wire import primitives

    if entry.dtype in primitives.INTEGERS:
        return parse("raw")

    if isinstance(policy, Policy):
        return policy.codec(entry.name, entry.shape, entry.dtype)
    return policy


def _spelled(policy: Aim | Policy) -> str:
    """Return the spec of the one codec, or of the choice."""
    from gcodec.policy import Policy

    return str(policy.rules[0].codec) if isinstance(policy, Policy) else str(policy)


def _policy(spec: str | None, file: BinaryIO | None) -> Policy:
    """Read ``--policy``, or make a policy of one rule of ``--codec``."""
    from gcodec.codecs import parse
    from gcodec.errors import ParameterError
    from gcodec.policy import Policy

    if spec is not None and file is None:
        return Policy([{"codec": parse(spec)}])
    if spec is not None or file is None:
        raise click.UsageError("Pass either --codec SPEC or --policy FILE.json.")
    data = file.read(_MOST_POLICY_BYTES + 1)
    try:
        if len(data) > _MOST_POLICY_BYTES:
            raise ParameterError(f"policy: must be at most {_MOST_POLICY_BYTES} bytes of JSON")
        return Policy.from_json(data)
    except ParameterError as error:
        raise ParameterError(f"{file.name}: {error}") from None


def _chosen(dump: Dump, layers: tuple[str, ...]) -> list[Entry]:
    """Return the tensors to encode, or say why there are none."""
    import glob
    import shlex

    from gcodec.cli.options import selects
    from gcodec.errors import ParameterError, Unsupported
    from gcodec.wire import primitives

    chosen = [entry for entry in dump.entries if selects(layers, entry.name)]
    if not dump.entries:
        raise Unsupported("it holds no tensors")
    if not chosen:
        raise ParameterError(f"no tensor matches --layers {' '.join(layers)}")
    for entry in chosen:
        if entry.dtype not in primitives.DTYPE_CODES:
            raise Unsupported(
                f"tensor {entry.name!r} is {entry.dtype}, and frames hold "
                f"{', '.join(primitives.DTYPE_CODES)}; leave it out with -L "
                + shlex.quote(f"!{glob.escape(entry.name)}")
            )
    return chosen


def _write(
    dump: Dump,
    chosen: list[tuple[Entry, Codec | Aim]],
    target: Path,
    seed: int,
    nonfinite: NonFinite,
    quiet: bool,
) -> dict[str, Any]:
    """Write one .gcf file, a tensor at a time, and say what is in it."""
    from gcodec import encode
    from gcodec.advisor.choose import Aim
    from gcodec.cli.progress import progress
    from gcodec.cli.text import ratio
    from gcodec.errors import ParameterError
    from gcodec.feedback import derive_seed
    from gcodec.tensorfiles.atomic import atomic_write
    from gcodec.wire import primitives

    values = nbytes = raw_nbytes = 0
    counts: Counter[str] = Counter()
    missed: dict[str, dict[str, Any]] = {}
    total = sum(math.prod(entry.shape) for entry, _ in chosen)
    with progress(target.name, total, quiet=quiet) as advance, atomic_write(target) as file:
        for entry, wanted in chosen:
            array = dump.load(entry)
            tensor_seed = derive_seed(seed, name=entry.name)
            try:
                codec = (
                    _choose(array, wanted, tensor_seed, nonfinite)
                    if isinstance(wanted, Aim)
                    else wanted
                )
                reports: list[MissedTarget] = []
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
        "input": str(dump.path),
        "output": str(target),
        "tensors": len(chosen),
        "codecs": dict(counts),
        "integers": [entry.name for entry, _ in chosen if entry.dtype in primitives.INTEGERS],
        "values": values,
        "bytes": nbytes,
        "bits_per_value": ratio(8 * nbytes, values),
        "ratio": ratio(raw_nbytes, nbytes),
        "missed": missed,
    }


def _choose(array: Array, aim: Aim, seed: int, nonfinite: NonFinite) -> Codec:
    """Choose a codec for the values that it will be given."""
    from gcodec import choose
    from gcodec.arrays.intake import intake, outlet, with_policy
    from gcodec.errors import ParameterError

    if nonfinite == "propagate":
        allowed = "raise or zero where the codec is chosen"
        raise ParameterError.of("nonfinite", nonfinite, allowed)
    tensor = intake(array)
    if nonfinite == "zero" and (finite := with_policy(tensor, "zero")) is not tensor:
        array = outlet(finite.values, tensor.dtype).reshape(tensor.shape)
    return choose(array, max_err=aim.max_err, max_bits=aim.max_bits, seed=seed)


def _refusal(entry: Entry, array: Array, error: Exception) -> Exception:
    """Say what an encoder did not like about a tensor."""
    from gcodec.analysis.stats import find_nonfinite
    from gcodec.arrays.intake import intake
    from gcodec.cli.outcome import CheckFailed
    from gcodec.errors import ParameterError

    # As the codec sees it: a float64 beyond the range of float32 is infinite there.
    count, places = find_nonfinite(intake(array, integers=True).values)
    if not count:
        return ParameterError(f"tensor {entry.name!r}: {error}")
    return CheckFailed(
        f"tensor {entry.name!r} holds {count} NaN or Inf, the first at flat index {places[0]}; "
        "--nonfinite zero replaces them by 0"
    )
