"""F3: mutated payloads in compiled loops do not overwrite the canaries."""

from __future__ import annotations

import faulthandler
import sys
import time

from fuzz.calls import Call, by_codec, recorded
from fuzz.figures.figure import Figure
from fuzz.goldens import of_codecs
from fuzz.jitfuzz import fuzz
from gcodec.runtime import jit

MANY, FEW = 10**7, 20_000  # mutants of each codec
SHORT = ("raw", "minifloat")  # codecs of the short form, whose kernels compile quickly
LONGEST = 3600.0  # seconds until a loop counts as hanging


def loops(short: bool, mutants: int = MANY, seed: int = 0) -> Figure:
    """Run mutants of each codec's payloads through its decode kernels."""
    count, failures, lines = 0, [], []
    watched = not short and sys.stderr is not None
    if watched:
        faulthandler.dump_traceback_later(LONGEST, exit=True)
    for codec, calls in _calls(short).items():
        began = time.perf_counter()
        done, findings = fuzz(calls, FEW if short else mutants, seed)
        rate = done / (time.perf_counter() - began) / 1e6
        lines.append(f"{codec}: {done} mutants, {len(calls)} kernels, {rate:.1f} million/s")
        failures += [f"{codec} {finding.kernel}: {finding.what}" for finding in findings]
        count += done
    if watched:
        faulthandler.cancel_dump_traceback_later()
    build = "checked build" if jit.checked() else "production build"
    promise = f"no kernel reads or writes out of bounds ({build})"
    return Figure("F3", promise, count, "mutants", failures, "\n".join(lines))


def _calls(short: bool) -> dict[str, list[Call]]:
    if not short:
        return by_codec()
    few = [golden for golden in of_codecs(3) if golden.codec in SHORT]
    groups: dict[str, list[Call]] = {}
    for golden in few:
        for call in recorded(golden)[:1]:
            groups.setdefault(golden.codec, [call])
    return groups
