"""The MPI communicator in real processes, if an MPI library and its mpiexec are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Open MPI needs these in a container with two cores; other libraries ignore them.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def ranks(*before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-W", "error", str(ROOT / "tests" / "mpi_ranks.py")],
        env={**os.environ, **OPEN_MPI, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_mpi_communicator() -> None:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    own = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=str(own)) or shutil.which("mpiexec")
    done = ranks()
    if "cannot load MPI library" in done.stderr:
        pytest.skip("there is no MPI library")
    assert done.stdout == "rank 0 of 1 is fine\n", done.stderr
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    done = ranks(mpiexec, "-n", "3")
    expected = [f"rank {rank} of 3 is fine" for rank in range(3)]
    assert done.stdout.splitlines() == expected, done.stderr


def test_exception_of_one_rank_ends_the_others() -> None:
    """The page advises to start ranks by ``-m mpi4py``; without it, the others wait forever."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    own = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=str(own)) or shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    code = """if True:
        import gcodec.mpi
        communicator = gcodec.mpi.MPICommunicator()
        communicator.all_gather(b"" if communicator.rank else None)
    """
    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py", "-c", code],
        env={**os.environ, **OPEN_MPI, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "cannot load MPI library" in done.stderr:
        pytest.skip("there is no MPI library")
    assert done.returncode != 0
    assert "message=None: must be bytes-like" in done.stderr
    text = (ROOT / "docs" / "frameworks.md").read_text()
    assert "mpiexec -n 4 python -m mpi4py gather.py" in text


def test_import_without_mpi4py() -> None:
    code = "import sys; sys.modules['mpi4py'] = None\nimport gcodec.mpi"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs mpi4py: pip install 'gcodec[mpi]'" in run.stderr.splitlines()[-1]
