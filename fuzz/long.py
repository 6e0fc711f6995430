"""Fuzz for hours: ``GCODEC_CHECKED=1 nice -n 19 python -m fuzz.long --hours 8``.

Each round has a new seed and runs mutants of each codec's payloads in compiled loops. Every third
round also runs each target for some seconds, and mutants between guard pages. At the end the
totals are printed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import sys
import time

from fuzz import guard, run, targets
from fuzz.calls import by_codec
from fuzz.jitfuzz import Fuzzed
from gcodec.runtime import jit

MUTANTS = 500_000  # mutants of each codec per round
SECONDS = 2.0  # seconds per target
GUARDED = 200  # mutants per target between guard pages
EVERY = 3  # rounds of loops per round of targets


def main() -> int:
    """Fuzz and print the totals; return 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.long", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began, cpu = time.perf_counter(), time.process_time()
    ready = {codec: [Fuzzed(call) for call in calls] for codec, calls in by_codec().items()}
    mutants = inputs = calls = failures = 0

    def report_progress() -> float:
        hours = (time.perf_counter() - began) / 3600
        build = "checked" if jit.checked() else "production"
        print(
            f"{hours:.2f} h, {(time.process_time() - cpu) / 3600:.2f} h of a processor, "
            f"{build} build: {mutants:.3e} mutants in loops, {inputs} inputs of targets, "
            f"{calls} calls between guard pages, {failures} failures",
            flush=True,
        )
        return hours

    for seed in itertools.count(options.seed):
        for loops in ready.values():
            share = MUTANTS // len(loops)
            for one in loops:
                failing = one.run(seed * 2**40, 0, share)
                mutants += share
                if failing is not None:
                    failures += 1
                    print(f"{failing.kernel}: {failing.what}: {failing.payload.hex()}", flush=True)
        if report_progress() >= options.hours:
            break
        if seed % EVERY:
            continue
        for name in targets.TARGETS:
            count, failed = run.fuzz(name, seed=seed, seconds=SECONDS)
            inputs += count
            if failed is not None:
                failures += 1
                print(f"python -m fuzz --target {name} --replay '{failed.hex()}'", flush=True)
            rng = random.Random(f"{name} {seed} guard")
            sample = list(itertools.islice(run.mutants(run.corpus(name), rng), GUARDED))
            more, findings = guard.replay(
                functools.partial(targets.run, name), sample, seed % 2 > 0
            )
            calls += more
            for finding in findings:
                failures += 1
                print(f"guard pages, {name}: {sample[finding.number].hex()}\n{finding.what}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
