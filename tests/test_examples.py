"""Test that the examples run and print the promised results."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import LOOPBACK, run_programs

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_bidirectional(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "bidirectional.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step")]
    assert losses[-1] < 0.05 * losses[0]
    assert lines[-1] == "distinct replicas: 1"


def run_example(module: str, *options: str) -> list[str]:
    """Run an example as its documentation says, but shorter; return the lines that it prints."""
    return run_module(f"examples.{module}", *options)


def run_module(*command: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), **LOOPBACK}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=EXAMPLES.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_two_ranks(module: str, *options: str) -> list[str]:
    """Run an example as ``torchrun --nproc-per-node 2`` does; return the lines of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    programs = [["-m", f"examples.{module}", *options]] * 2
    ranks = [{**LOOPBACK, **group, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    results = run_programs(programs, EXAMPLES.parent, ranks)
    for done in results:
        assert done.status == 0, done.errors
    return results[0].output.splitlines()


def test_fsdp2() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    dense, compressed = run_two_ranks("fsdp2", "--steps", "2")
    assert dense.endswith("with dense collectives")
    assert "with <FsdpComm: ecsq:bits=2.0, step 2, " in compressed


def test_diloco() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    options = "--steps", "4", "--every", "4", "--fragments", "2", "--overlap", "1"
    dense, compressed = run_two_ranks("diloco", *options)
    assert "with <DiLoCo: raw, every 4, inner step 4, outer step 1, " in dense
    assert "with <DiLoCo: ecsq:bits=1.0, every 4, inner step 4, outer step 1, " in compressed


def test_torchft_diloco() -> None:
    pytest.importorskip("torchft", reason="torchft is not installed")
    lines = run_example("torchft_diloco", "--exchanges", "8", "--every", "4")
    for start in (
        "worker 0: DiLoCo: outer step 2, fragment 0: ",
        "worker 0: exchange 4 with 0 others, ",
        "worker 0: exchange 8 with 1 other, ",
        "worker 2: exchange 8 with 1 other, ",
    ):
        assert any(line.startswith(start) for line in lines), lines
    digests = [line.split()[4] for line in lines if "outer parameters" in line]
    assert len(digests) == 2
    assert len(set(digests)) == 1


def test_jax_mean() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    lines = run_example("jax_mean", "--devices", "2", "--steps", "20")
    assert float(lines[0].split()[1]) < 0.2
    assert lines[1] == "476 bytes a message in place of 12,288"
    assert lines[2] == "distinct replicas: 1"


@pytest.mark.parametrize("library", ["accelerate", "lightning", "transformers", "ray"])
def test_trainers(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    options = library, "--steps", "10"
    if library == "accelerate":
        lines = run_two_ranks("trainers", *options)
    else:
        starts_workers = library == "ray"
        launcher = (
            () if starts_workers else ("torch.distributed.run", "--nproc-per-node", "2", "-m")
        )
        lines = run_module(*launcher, "examples.trainers", *options)
    loss = next(line for line in lines if " at first, " in line)
    first, last = (float(number) for number in re.findall(r"(\S+) at (?:first|last)", loss))
    assert last < first
    assert "ecsq:nmse=0.1, step 10, " in loss
    assert any(line.endswith("distinct replicas: 1") for line in lines)


def test_federated() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    pytest.importorskip("ray", reason="Flower's simulation runtime is not installed")
    first, second, third = run_example("federated", "--rounds", "3")[-3:]
    assert float(first.split()[1]) < 0.05
    assert second.endswith("bytes received in place of 98,304")
    assert third.startswith("3 replies of 1 client dropped: the payload's checksum is wrong")


def test_ddp() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = ["-m", "examples.ddp", "--ranks", "2", "--steps", "4", "--collective", "two-phase"]
    (done,) = run_programs([program], EXAMPLES.parent, [LOOPBACK])
    assert done.status == 0, done.errors
    plain, two_phase = done.output.splitlines()
    assert plain.endswith(" with a plain all-reduce")
    assert " with two-phase: " in two_phase
    losses = [float(line.split()[1]) for line in (plain, two_phase)]
    assert abs(losses[1] - losses[0]) < 0.02 * losses[0]
