"""What docs/frameworks.md shows is run, of each library that is installed."""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "frameworks.md").read_text("utf-8"), flags=re.M)[1:]
NEEDS = {
    "PyTorch: DistributedDataParallel": "torch",
    "PyTorch: tensors and process groups": "torch",
    "JAX": "jax",
    "MPI": "mpi4py",
    "numcodecs and Zarr 2": "numcodecs",
    "Zarr 3": "zarr",
}
# Those that join a group of processes do so in one of their own.
JOINING = ("PyTorch: DistributedDataParallel", "MPI")


def run_apart(code: str) -> str:
    """Run a program as the only process of its group; return what it prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if "cannot load MPI library" in done.stderr:
        pytest.skip("there is no MPI library")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_python_blocks(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    title = section.partition("\n")[0]
    pytest.importorskip(NEEDS[title], reason=f"{NEEDS[title]} is not installed")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S))
    assert code
    if title in JOINING:
        printed = run_apart(code)
    else:
        if NEEDS[title] == "numcodecs":  # what the installed package declares
            own = importlib.import_module("gcodec.numcodecs")
            importlib.import_module("numcodecs").register_codec(own.GradientCodec)
        exec(compile(code, "docs/frameworks.md", "exec"), {"__name__": "page"})
        printed = capsys.readouterr().out
    assert printed.splitlines() == re.findall(r"# prints (.*)$", code, re.M)


def test_every_section_has_a_library() -> None:
    assert [section.partition("\n")[0] for section in SECTIONS] == list(NEEDS)
