"""The cache of compiled kernels: damaged files, other users, many processes, other processors."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numba.core.registry import cpu_target

import gcodec
from fuzz import kernel_cache as damaging
from gcodec.errors import CompilerDisabled
from gcodec.runtime import jit, store
from gcodec.runtime.jit import Kernel

ROOT = Path(__file__).parents[2]
VICTIM, STRANGER = 12345, 54321  # user ids
posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of POSIX")
as_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can act as other users"
)
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


# --- contents -----------------------------------------------------------------------------------


def test_only_the_same_kernel_reads_a_file() -> None:
    data = store.sealed(b"identity", b"payload")
    assert store.unsealed(b"identity", data) == b"payload"
    assert store.unsealed(b"identityp", data) is None
    assert store.unsealed(b"identityp", store.sealed(b"identity", b"ppayload")) is None
    assert store.unsealed(b"identit", store.sealed(b"identity", b"")) is None
    assert store.file_name("a.b", b"one") != store.file_name("a.b", b"two")


def test_a_flipped_bit_or_another_length_is_detected() -> None:
    data = store.sealed(b"identity", bytes(range(50)))
    for length in range(len(data)):
        assert store.unsealed(b"identity", data[:length]) is None
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        assert store.unsealed(b"identity", bytes(flipped)) is None
    assert store.unsealed(b"identity", data + b"\0") is None


def test_file_names_are_portable() -> None:
    codegen = cpu_target.target_context.codegen()
    names = [
        store.file_name(kernel.name, kernel.identity(codegen)).casefold()
        for kernel in jit.kernels()
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) < 140 and not set(name) & set(r'<>:"/\|?* ') for name in names)


# --- damage -------------------------------------------------------------------------------------


def quick_kernels() -> list[Kernel]:
    return [kernel for kernel in jit.kernels() if kernel.name in damaging.ARGUMENTS]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a few kernels for two processors."""
    folder = tmp_path_factory.mktemp("compiled")
    run_kernels(folder, "apart", "host", "generic")
    (build,) = folder.iterdir()
    return {path.name: path.read_bytes() for path in build.iterdir()}


def test_random_damage_is_detected(
    compiled: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    build = jit.cache_directory()
    assert build is not None
    codegen = cpu_target.target_context.codegen()
    kernels = {store.file_name(k.name, k.identity(codegen)): k for k in quick_kernels()}
    assert kernels.keys() <= compiled.keys()
    for name, data in compiled.items():
        (build / name).write_bytes(data)
    assert all(kernel.cached for kernel in kernels.values())
    rng, detected = random.Random(0), 0
    for _ in range(1000):
        files = dict(compiled)
        damaging._damage(rng.choice(list(kernels.values())).name, files, rng)
        for name in [name for name, data in files.items() if data is not compiled[name]]:
            (build / name).write_bytes(files[name])
            if name in kernels:
                assert kernels[name].cached == (files[name] == compiled[name])
                detected += not kernels[name].cached
            (build / name).write_bytes(compiled[name])
    assert detected > 400
    assert all(kernel.cached for kernel in kernels.values())


@forking
def test_damaged_kernels_are_compiled_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.kernel_cache", "--damages", "12", "--seed", "5"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled" in done.stdout and "loaded" in done.stdout


@posix
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    with store.opened(tmp_path / "cache") as directory:
        path = Path(directory.path)
        os.mkfifo(path / "pipe")
        (path / "folder").mkdir()
        (path / "file").write_bytes(b"data")
        (path / "link").symlink_to("file")
        (path / "file").chmod(0o622)
        for name in ("pipe", "folder", "link", "file", "missing"):
            with pytest.raises(OSError):
                directory.read(name)
        (path / "file").chmod(0o644)
        assert directory.read("file") == b"data"


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with store.opened(tmp_path / "cache") as directory:
        (Path(directory.path) / "name").mkdir()
        with pytest.raises(OSError):
            directory.write("name", b"data")
        assert [path.name for path in Path(directory.path).iterdir()] == ["name"]


# --- processes and processors -------------------------------------------------------------------

# Each process has its own target processor. In the mode "together", no process renames a file
# before each has written one. The processes print how many kernels they loaded.
PROCESSES = """
import json, os, sys
from numba.core import config
import gcodec
from fuzz import kernel_cache as damaging
from gcodec.runtime import jit

together, *processors = sys.argv[1:]
ready, go = os.pipe(), os.pipe()
waited = together == "apart"
replace = os.replace

def replace_together(*args, **kwargs):
    global waited
    if not waited:
        waited = True
        os.write(ready[1], b"!")
        os.read(go[0], 1)
    replace(*args, **kwargs)

pipes = []
for processor in processors:
    get, put = os.pipe()
    if os.fork() == 0:
        os.close(go[1])
        os.replace = replace_together
        if processor != "host":
            config.CPU_NAME, config.CPU_FEATURES = processor, ""
        loaded = 0
        for kernel in [k for k in jit.kernels() if k.name in damaging.ARGUMENTS]:
            arguments = damaging.ARGUMENTS[kernel.name]()
            kernel(*arguments)
            assert (arguments[-1] == damaging.RESULTS[kernel.name]).all()
            loaded += sum(kernel.built.stats.cache_hits.values())
        os.write(put, b"%d" % loaded)
        os._exit(0)
    pipes.append(get)
    os.close(put)
os.close(ready[1])
waiting = 0
while not waited and waiting < len(processors) and (more := os.read(ready[0], 99)):
    waiting += len(more)
os.close(go[1])
print(json.dumps([int(os.read(pipe, 9) or -1) for pipe in pipes]))
"""


def run_kernels(folder: Path, mode: str, *processors: str) -> list[int]:
    """Run a few kernels in a process per processor; return how many kernels each one loaded."""
    if not hasattr(os, "fork"):
        pytest.skip("forks")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESSES, mode, *processors],
        cwd=ROOT,
        env={**os.environ, "GCODEC_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded: list[int] = json.loads(done.stdout)
    assert all(number >= 0 for number in loaded), done.stderr
    return loaded


def test_processes_and_processors_share_a_directory(tmp_path: Path) -> None:
    """Eight processes for two processors write concurrently, and later ones compile nothing."""
    run_kernels(tmp_path, "together", *("host", "generic") * 4)
    (build,) = tmp_path.iterdir()
    written = {path.name: path.read_bytes() for path in build.iterdir()}
    assert len(written) == 2 * len(damaging.ARGUMENTS)  # no temporary files
    assert run_kernels(tmp_path, "apart", "host", "generic") == [len(damaging.ARGUMENTS)] * 2
    assert {path.name: path.read_bytes() for path in build.iterdir()} == written


@pytest.mark.parametrize("changed", ["CPU_NAME", "CPU_FEATURES", "OPT", "BOUNDSCHECK"])
def test_code_of_another_compiler_or_processor_is_not_loaded(changed: str) -> None:
    """Each of these settings is part of the kernel's identity."""
    program = (
        "from numba.core.registry import cpu_target\n"
        "from gcodec.runtime import jit; from gcodec.kernels.numeric import philox\n"
        "print(philox._words.identity(cpu_target.target_context.codegen()).hex())"
    )
    values = {"CPU_NAME": "generic", "CPU_FEATURES": "", "OPT": "1", "BOUNDSCHECK": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), f"NUMBA_{changed}": values[changed]}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    from gcodec.kernels.numeric import philox

    own = philox._words.identity(cpu_target.target_context.codegen())
    assert bytes.fromhex(done.stdout.decode()) != own


@jit.kernel("in uint8[], out uint8[]")
def _copy_first(source, target):
    target[0] = source[0]


def test_kernels_outside_the_package_are_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build id does not cover their source, so a cached file could be stale."""
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    target = np.zeros(1, np.uint8)
    _copy_first(np.full(1, 7, np.uint8), target)
    assert target[0] == 7 and not _copy_first.cached
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


# --- directories --------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(store.Refused) as caught, store.opened(path):
        pass
    return str(caught.value)


@posix
def test_ancestors_that_others_can_write_to_are_refused(tmp_path: Path) -> None:
    open_one = tmp_path / "open"
    path = open_one / "private" / "cache"
    path.mkdir(parents=True)
    path.chmod(0o700)
    open_one.chmod(0o777)
    assert refused(path) == f"Other users can write to {open_one}, whose mode is 0777."
    open_one.chmod(0o1777)  # as /tmp
    with store.opened(path) as directory:
        assert directory.path == str(path)
    path.chmod(0o1777)  # lets other users add files
    assert "1777" in refused(path)


@posix
def test_only_ancestors_may_be_links(tmp_path: Path) -> None:
    home = tmp_path / "disk" / "home"
    home.mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk/home")
    with store.opened(tmp_path / "home" / "a" / "cache") as directory:
        assert directory.path == str(home / "a" / "cache")
    assert stat.S_IMODE((home / "a").stat().st_mode) == 0o700
    (home / "a" / "link").symlink_to("cache")
    assert "is not a directory" in refused(home / "a" / "link")
    (tmp_path / "disk").chmod(0o777)  # reached through the link only
    assert str(tmp_path / "disk") in refused(tmp_path / "home" / "a" / "cache")


@posix
def test_a_private_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shared" / "cache"
    path.mkdir(parents=True, mode=0o700)
    path.chmod(0o700)
    path.parent.chmod(0o775)
    for private in (True, False):
        monkeypatch.setattr(store, "_is_private", lambda group, user, answer=private: answer)
        if private:
            with store.opened(path):
                pass
        else:
            assert "0775" in refused(path)
    path.parent.chmod(0o777)
    monkeypatch.setattr(store, "_is_private", lambda group, user: True)
    assert "0777" in refused(path)


@posix
def test_a_user_without_an_account_has_no_private_group() -> None:
    assert not store._is_private(os.getegid(), 987_654_321)
    assert not store._is_private(987_654_321, os.geteuid())


@posix
def test_replacing_an_open_directory_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with store.opened(path) as directory:
        directory.write("kernel", b"own")
        path.rename(tmp_path / "moved")
        path.mkdir()
        (path / "kernel").write_bytes(b"planted")
        assert directory.read("kernel") == b"own"
        directory.write("another", b"own")
    with pytest.raises(OSError):  # closed
        directory.read("kernel")
    assert not (path / "another").exists()
    assert (tmp_path / "moved" / "another").read_bytes() == b"own"


def test_systems_without_directory_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has no directory descriptors."""
    monkeypatch.setattr(store, "_BY_PATH", True)
    with store.opened(tmp_path / "a" / "cache") as directory:
        directory.write("kernel", b"first")
        directory.write("kernel", b"second")
        assert directory.read("kernel") == b"second"
    assert [path.name for path in (tmp_path / "a" / "cache").iterdir()] == ["kernel"]


def test_a_user_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GCODEC_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert jit.cache_directory() is None
    assert jit.cache_fault() == "The user has no home directory."


# --- a second user ------------------------------------------------------------------------------


# Another user may be unable to read Python's files, so all imports precede the change of the user.
AS_USER = """
import os, sys
import numba, numpy as np
import gcodec
from gcodec.kernels.numeric import arithmetic; from gcodec.runtime import jit
jit.build_id()
if sys.argv[2] == "compile":
    numba.njit("int64(int64)")(lambda x: x + 1)
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
os.umask(0o022)
os.environ.pop("HOME", None)
"""


def run_as(
    user: int, program: str, folder: Path, need: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AS_USER + program, str(user), need],
        cwd=ROOT,
        env={**os.environ, "GCODEC_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that other users can reach; it contains one that all can write to."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder)


USE = """
print(jit.cache_directory())
print(jit.cache_fault())
"""
PLANT = """
victims = {folder!r}
os.rename(victims, victims + ".old")
os.makedirs(victims + "/" + jit.cache_location().name)
"""


@as_root
def test_directories_that_others_can_replace_are_refused(public: Path) -> None:
    cache = public / "open" / "cache"
    cache.mkdir(mode=0o700)
    os.chown(cache, VICTIM, VICTIM)
    done = run_as(VICTIM, USE, cache)
    assert done.stdout.splitlines() == [
        "None",
        f"Other users can write to {public / 'open'}, whose mode is 0777.",
    ]
    # Another user can indeed replace the file, so the refusal is necessary.
    exchanged = run_as(STRANGER, PLANT.format(folder=str(cache)), cache)
    assert exchanged.returncode == 0, exchanged.stderr
    assert cache.stat().st_uid == STRANGER


@as_root
def test_a_sticky_directory_is_safe(public: Path) -> None:
    (public / "open").chmod(0o1777)
    cache = public / "open" / "cache"
    done = run_as(VICTIM, USE, cache)
    path, fault = done.stdout.splitlines()
    assert Path(path).parent == cache and fault == "", done.stderr
    assert cache.stat().st_uid == VICTIM and stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert "Permission" in run_as(STRANGER, PLANT.format(folder=str(cache)), cache).stderr
    # A directory that another user created first is refused.
    other = public / "open" / "other"
    assert run_as(STRANGER, USE, other).returncode == 0
    other.chmod(0o755)
    done = run_as(VICTIM, USE, other)
    assert done.stdout.splitlines() == [
        "None",
        f"{other} belongs to another user, whose number is {STRANGER}.",
    ]


RUN = """
x = np.zeros(1, np.float32)
arithmetic.add_scaled(np.ones(1, np.float32), np.float32(2), x)
print(x[0], sum(arithmetic._add_scaled.built.stats.cache_hits.values()), jit.cache_fault())
"""


@as_root
def test_other_users_read_the_cache_of_root(public: Path) -> None:
    """A container may be built by root, and run by a user without an account."""
    cache = public / "cache"
    assert run_as(0, RUN, cache, "compile").stdout == "2.0 0 \n"
    (build,) = cache.iterdir()
    for path in (cache, build):
        path.chmod(0o755)
    (file,) = build.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = f"Nothing can be written to {build}.\n"
    assert run_as(VICTIM, RUN, cache, "compile").stdout == "2.0 0 " + said
    file.chmod(0o644)
    assert run_as(VICTIM, RUN, cache, "compile").stdout == "2.0 1 " + said
    file.chmod(0o646)
    assert run_as(VICTIM, RUN, cache, "compile").stdout == "2.0 0 " + said


# --- no compiler --------------------------------------------------------------------------------


def test_a_disabled_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    kernel = quick_kernels()[0]
    fresh = Kernel(kernel.function, kernel.signature, kernel.variant)
    with pytest.raises(CompilerDisabled, match="unset the environment variable NUMBA_DISABLE_JIT"):
        fresh(*damaging.ARGUMENTS[kernel.name]())
    assert issubclass(CompilerDisabled, gcodec.GcodecError)


def test_the_first_call_reports_a_disabled_compiler() -> None:
    program = "import gcodec, numpy as np; gcodec.encode(np.ones(4, np.float32), 'sign')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "gcodec.errors.CompilerDisabled: Numba's compiler is disabled, and gcodec cannot run "
        "without it: unset the environment variable NUMBA_DISABLE_JIT, and start Python again."
    )
