"""Write the output of the command into pages: ``python tools/captures.py docs/advise.md``.

A capture is a ``text`` block that begins with ``$ gcodec …``. The program replaces the rest of the
block with the output of that call, written to a pipe on a machine with the example files, notes
included.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
_COMPILING = "gcodec: compiling kernels"
_BLOCK = re.compile(r"^```text\n\$ (gcodec .*)\n((?:.*\n)*?)```$", re.MULTILINE)


def captures(page: Path) -> list[tuple[str, str]]:
    """Return the calls of a page and the outputs that the page shows."""
    return _BLOCK.findall(page.read_text("utf-8"))


def output(call: str) -> str:
    """Run a call; return its output, first stdout, then stderr without the note of compiling."""
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(call)],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
    )
    if done.returncode:
        raise SystemExit(f"{call}: exit code {done.returncode}\n{done.stderr}")
    lines = (done.stdout + done.stderr).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if not line.startswith(_COMPILING))


def main() -> None:
    """Rewrite the given pages."""
    for name in sys.argv[1:]:
        page = Path(name)
        text = page.read_text("utf-8")
        new = _BLOCK.sub(lambda m: f"```text\n$ {m[1]}\n{output(m[1])}```", text)
        page.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
