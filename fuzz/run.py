"""The mutation loop over the corpus, with a seed, so that runs are repeatable."""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz.goldens import CORPUS, of_codecs
from fuzz.targets import TARGETS, run

OF_FRAMES = ("frame", "repaired", "stream", "differential", "gcf")
GOLDENS = 4  # golden vectors of each codec that serve as seeds
LONGEST = 8192  # most bytes of a mutant
SLOWEST = 5.0  # most processor seconds for one input
INTERESTING = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 192, 254, 255)
INTEGERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
TOKENS = (b"GCF\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x00\x00\x00\x3f", b"=", b",")


def corpus(target: str) -> list[bytes]:
    """Return the corpus of a target, and the empty input."""
    seeds = [b"", *(file.read_bytes() for file in sorted((CORPUS / target).glob("*")))]
    if target in OF_FRAMES:
        seeds += [golden.data for golden in of_codecs(GOLDENS) if golden.key is None]
    return seeds


def mutants(seeds: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    """Yield mutated inputs without end."""
    while True:
        data = bytearray(rng.choice(seeds))
        for _ in range(1 << rng.randrange(5)):
            _mutate(data, seeds, rng)
        yield bytes(data[:LONGEST])


def _mutate(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    choice = rng.randrange(10)
    if choice <= 2 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif choice == 3 and data:
        data[at % len(data)] = rng.choice(INTERESTING)
    elif choice == 4:
        width = rng.choice((1, 2, 4, 8))
        value = rng.choice(INTEGERS) % (1 << 8 * width)
        data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))
    elif choice == 5:
        del data[at:]
    elif choice == 6:
        del data[at : at + rng.choice((1, 1, 2, 4, 16))]
    elif choice == 7:
        data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 16)))
    elif choice == 8:
        data[at:at] = rng.choice(TOKENS)
    else:
        other = rng.choice(seeds)
        start = rng.randrange(len(other) + 1)
        piece = other[start : start + rng.randrange(1, 65)]
        data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece


def fuzz(
    target: str, *, seed: int, runs: int | None = None, seconds: float | None = None
) -> tuple[int, bytes | None]:
    """Run a target on its corpus, then on mutants of the corpus.

    Returns
    -------
    int
        Number of inputs.
    bytes or None
        The input that failed, after printing its traceback.
    """
    seeds = corpus(target)
    rng = random.Random(f"{target} {seed}")
    start = time.perf_counter()
    count = 0
    for data in _inputs(seeds, rng):
        if runs is not None and count >= max(runs, len(seeds)):
            break
        if seconds is not None and time.perf_counter() - start >= seconds and count >= len(seeds):
            break
        count += 1
        try:
            # The first run may compile the kernels that an input needs, so measure a second one.
            slow = _seconds(target, data) > SLOWEST and _seconds(target, data) > SLOWEST
        except Exception:
            traceback.print_exc()
            return count, data
        if slow:
            print(f"{target}: an input took more than {SLOWEST} s")
            return count, data
    return count, None


def _seconds(target: str, data: bytes) -> float:
    began = time.process_time()
    run(target, data)
    return time.process_time() - began


def _inputs(seeds: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    yield from seeds
    yield from mutants(seeds, rng)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and fuzz; return 1 if an input failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--runs", type=int, help="inputs per target, or mutants per codec")
    amount.add_argument("--seconds", type=float, help="time per target (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--replay", metavar="HEX", help="run --target on these bytes only")
    mode.add_argument("--minimize", metavar="FILE", help="shrink a failing input of --target")
    mode.add_argument(
        "--jit", action="store_true", help="mutate and decode payloads in compiled loops"
    )
    mode.add_argument("--guard", action="store_true", help="run inputs between guard pages")
    options = parser.parse_args(arguments)
    if options.jit:
        return _in_loops(options.runs or 10**7, options.seed)
    one = options.replay is not None or options.minimize is not None
    if one and options.target == "all":
        parser.error("--replay and --minimize need --target")
    if options.replay is not None:
        run(options.target, bytes.fromhex(options.replay))
        print(f"{options.target}: the input passes")
        return 0
    if options.minimize is not None:
        return _minimize(options.target, Path(options.minimize))
    chosen = list(TARGETS) if options.target == "all" else [options.target]
    if options.guard:
        return _between_pages(chosen, options.runs or 1000, options.seed)
    seconds = 10.0 if options.runs is None and options.seconds is None else options.seconds
    failures = 0
    for name in chosen:
        began = time.perf_counter()
        count, failed = fuzz(name, seed=options.seed, runs=options.runs, seconds=seconds)
        spent = time.perf_counter() - began
        print(
            f"{name}: {count} inputs in {spent:.1f} s, {'FAILED' if failed is not None else 'ok'}"
        )
        if failed is not None:
            failures += 1
            _print_failure(name, failed)
    return 1 if failures else 0


def _print_failure(target: str, failed: bytes) -> None:
    print(f"replay: python -m fuzz --target {target} --replay '{failed.hex()}'")


def _in_loops(mutants_each: int, seed: int) -> int:
    """Fuzz the kernels of each codec in compiled loops."""
    from fuzz.calls import by_codec
    from fuzz.jitfuzz import fuzz as in_loops

    failures = 0
    for codec, calls in by_codec().items():
        began = time.perf_counter()
        count, findings = in_loops(calls, mutants_each, seed)
        rate = count / (time.perf_counter() - began) / 1e6
        print(f"{codec}: {count} mutants, {len(calls)} kernels, {rate:.2f} million a second")
        for finding in findings:
            print(f"  {finding.kernel}: {finding.what}: {finding.payload.hex()}")
        failures += len(findings)
    return 1 if failures else 0


def _between_pages(chosen: Sequence[str], runs: int, seed: int) -> int:
    """Run the corpus and its mutants between guard pages."""
    from fuzz import guard

    failures = 0
    for name in chosen:
        rng = random.Random(f"{name} {seed}")
        seeds = corpus(name)
        inputs = [*seeds, *itertools.islice(mutants(seeds, rng), runs)]
        calls = 0
        for at_end in (True, False):
            more, findings = guard.replay(functools.partial(run, name), inputs, at_end)
            calls += more
            for finding in findings:
                print(finding.what)
                _print_failure(name, inputs[finding.number])
            failures += len(findings)
        print(f"{name}: {2 * len(inputs)} inputs, {calls} calls of kernels between guard pages")
    return 1 if failures else 0


def _minimize(target: str, path: Path) -> int:
    """Write a smaller input with the same failure next to the given file."""
    from fuzz.minimize import minimize

    way, smallest = minimize(target, path.read_bytes())
    if way is None:
        print(f"{target}: the input passes")
        return 1
    output = path.with_name(path.name + ".min")
    output.write_bytes(smallest)
    print(f"{way}\n{output}: {len(smallest)} bytes")
    _print_failure(target, smallest)
    return 0
