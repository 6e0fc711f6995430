"""Test that the examples for frameworks run: in docs/frameworks.md, the README and guides."""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rank_processes import run_programs

from gcodec.tensorfiles.dumps import open_dump

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text("utf-8")
SECTIONS = [part for part in re.split(r"^## ", PAGE, flags=re.M)[1:] if "\n```python" in part]
NEEDS = {
    "PyTorch: tensors and process groups": "torch",
    "JAX": "jax",
    "MPI": "mpi4py",
    "numcodecs and Zarr 2": "numcodecs",
    "Zarr 3": "zarr",
}
# By title: the quick starts of the README, and guides whose examples are one program.
README = (ROOT / "README.md").read_text("utf-8")
QUICK_STARTS = {
    part.partition("\n")[0]: part
    for part in README.split("## Quick starts\n")[1].split("\n## ")[0].split("\n### ")[1:]
}
QUICK_NEEDS = {
    "PyTorch DDP": "torch",
    "NumPy": "numpy",
    "Weights": "numpy",
}
GUIDES = ("ddp", "fsdp2", "diloco")


def variables_of(size: int) -> list[dict[str, str]]:
    """Return the environment of each rank of a group, as ``torchrun`` sets it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    return [{**common, "RANK": str(rank)} for rank in range(size)]


def run_apart(code: str, library: str) -> str:
    """Run a program as the only process of its group, in its own folder; return its output."""
    (variables,) = variables_of(1)
    with tempfile.TemporaryDirectory() as folder:
        if library == "torch":
            (done,) = run_programs([["-c", code]], Path(folder), [variables])
            assert done.status == 0, done.errors
            return done.output
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
        )
    if "cannot load MPI library" in run.stderr:
        pytest.skip("there is no MPI library")
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_python_blocks(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    title = section.partition("\n")[0]
    pytest.importorskip(NEEDS[title], reason=f"{NEEDS[title]} is not installed")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S))
    assert code
    if title == "MPI":  # which joins a group of processes
        printed = run_apart(code, NEEDS[title])
    else:
        if NEEDS[title] == "numcodecs":  # what the installed package declares
            own = importlib.import_module("gcodec.numcodecs")
            importlib.import_module("numcodecs").register_codec(own.GradientCodec)
        exec(compile(code, "docs/frameworks.md", "exec"), {"__name__": "page"})
        printed = capsys.readouterr().out
    assert printed.splitlines() == re.findall(r"# prints (.*)$", code, re.M)


def test_every_section_has_a_library() -> None:
    assert [section.partition("\n")[0] for section in SECTIONS] == list(NEEDS)


def run_page_apart(text: str, library: str) -> None:
    """Run the Python blocks of a text as one program; compare its output with ``# prints``."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert code
    assert run_apart(code, library).splitlines() == re.findall(r"# prints (.*)$", code, re.M)


@pytest.mark.parametrize("title", QUICK_NEEDS)
def test_quick_starts_of_the_readme(title: str) -> None:
    run_page_apart(QUICK_STARTS[title], QUICK_NEEDS[title])


def test_every_quick_start_has_a_library() -> None:
    assert QUICK_STARTS.keys() == QUICK_NEEDS.keys()


@pytest.mark.parametrize("guide", GUIDES)
def test_guides(guide: str) -> None:
    run_page_apart((ROOT / "docs" / f"{guide}.md").read_text("utf-8"), "torch")


def test_tutorial(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    text = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    (shown,) = re.findall(r"^```text\n([\d.]+% of new labels.*?)^```$", text, re.M | re.S)
    (tmp_path / "train.py").write_text(program)
    call = [str(tmp_path / "train.py"), "--codec", "sign"]
    first, second = run_programs([call] * 2, tmp_path, variables_of(2))
    assert not (tmp_path / "grads.pt").exists()  # these gradients would be decoded messages
    assert first.status == second.status == 0, first.errors + second.errors
    labels, state, pays = first.output.splitlines()
    shown_labels, shown_state, shown_pays = shown.splitlines()
    share, shown_share = (float(line.split("%")[0]) for line in (labels, shown_labels))
    assert abs(share - shown_share) < 3 and labels.endswith(shown_labels.split("%")[1])
    assert state == shown_state
    assert pays.split()[:2] == shown_pays.split()[:2]
    (tmp_path / "dense.py").write_text(program.replace("range(300)", "range(3)"))
    for rank in run_programs([[str(tmp_path / "dense.py")]] * 2, tmp_path, variables_of(2)):
        assert rank.status == 0, rank.errors
    with open_dump(tmp_path / "grads.pt") as grads:
        assert {entry.shape for entry in grads.entries} >= {(512, 64), (512, 512), (10, 512)}
