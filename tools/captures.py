"""Run the commands that the docs show, and put what they print below them.

A capture is a block of a page that begins with ```` ```text ```` and ``$ gcodec …``: below the
command is what it prints, first stdout and then stderr. ``python -m tools.captures`` writes all of
them anew; the tests do the same and compare.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(r"^```text\n\$ (gcodec [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the commands whose output a page shows."""
    return [match[1] for match in _BLOCK.finditer(page.read_text("utf-8"))]


def output(command: str) -> str:
    """Run a command at the top of the checkout and return what it prints into pipes."""
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        encoding="utf-8",
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in (done.stdout + done.stderr).splitlines())


def captured(page: Path) -> str:
    """Return the text of a page with all captures made anew."""
    return _BLOCK.sub(
        lambda match: f"```text\n$ {match[1]}\n{output(match[1])}```", page.read_text("utf-8")
    )


def main() -> None:
    """Write all pages anew that have captures."""
    for page in PAGES:
        if commands(page):
            page.write_text(captured(page), "utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
