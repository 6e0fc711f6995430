"""The cache of compiled kernels: damaged files, other users, many processes, other processors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sweeps import LONG

import gcodec
from fuzz import kernel_cache as damaging
from fuzz.kernel_cache import FileOf, other_level
from gcodec.errors import CompilerDisabled
from gcodec.runtime import jit, kernel_cache, processor, store
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
    names = [FileOf(kernel.name, kernel.signature).name.casefold() for kernel in jit.kernels()]
    assert len(set(names)) == len(names)
    assert all(len(name) < 140 and not set(name) & set(r'<>:"/\|?* ') for name in names)


# --- damage -------------------------------------------------------------------------------------


def quick_kernels() -> list[Kernel]:
    return [kernel for kernel in jit.kernels() if kernel.name in damaging.ARGUMENTS]


def fresh(kernel: Kernel) -> Kernel:
    """Return a kernel that this process has not loaded."""
    return Kernel(kernel.function, kernel.signature, kernel.variant)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory for compiled kernels, which is empty."""
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "cache"))
    build = kernel_cache.directory()
    assert build is not None
    return build


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Return the names of the kernels that the test compiles."""
    names: list[str] = []
    with kernel_cache.watched(names.append):
        yield names


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a few kernels, for two kinds of processors if possible."""
    folder = tmp_path_factory.mktemp("compiled")
    run_kernels(folder, "apart", *TARGETS)
    (build,) = folder.iterdir()
    return {path.name: path.read_bytes() for path in build.iterdir()}


def test_random_damage_is_detected(
    compiled: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment may name a level that is not among those of `compiled`.
    monkeypatch.setenv("GCODEC_TARGET", processor.NATIVE)
    kernels = {FileOf(k.name, k.signature).name: k for k in quick_kernels()}
    assert kernels.keys() <= compiled.keys()
    for name, data in compiled.items():
        (cache / name).write_bytes(data)
    assert not kernel_cache.missing(kernels.values())
    rng, detected = random.Random(0), 0
    for _ in range(1000):
        files = dict(compiled)
        damaging.damage(rng.choice(list(kernels.values())).name, files, rng)
        for name in [name for name, data in files.items() if data is not compiled[name]]:
            (cache / name).write_bytes(files[name])
            if name in kernels:
                is_missing = kernel_cache.missing([kernels[name]]) == [kernels[name]]
                assert is_missing == (files[name] != compiled[name])
                detected += is_missing
            (cache / name).write_bytes(compiled[name])
    assert detected > 400
    assert not kernel_cache.missing(kernels.values())


def test_compilations_are_logged(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "gcodec")
    one, two = quick_kernels()[:2]
    for has_compiled, kernel in ((False, one), (True, two), (True, two)):
        monkeypatch.setattr(kernel_cache, "_has_compiled", lambda value=has_compiled: value)
        kernel_cache.code_of(fresh(kernel))
    records = [(each.name, each.levelname, each.getMessage()) for each in caplog.records]
    assert records == [
        (
            "gcodec.runtime",
            "INFO",
            "compiling kernels, once; gcodec.warmup compiles them in advance",
        ),
        ("gcodec.runtime", "DEBUG", f"compiling the kernel {one.name}"),
        ("gcodec.runtime", "DEBUG", f"compiling the kernel {two.name}"),
    ]


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

LEVEL = other_level()
TARGETS = [processor.NATIVE] if LEVEL is None else [processor.NATIVE, LEVEL]
needs_level = pytest.mark.skipif(LEVEL is None, reason="the processor has no level")

# Each process has its own target processor. In the mode "together", all processes start to compile
# at the same time. In the mode "racing", they also ignore the locks of each other, and no process
# renames a file before each has written one. The processes print how many kernels they compiled.
PROCESSES = """
import json, os, sys
import gcodec
from fuzz import kernel_cache as damaging
from gcodec.runtime import compiler, entry, jit, kernel_cache, store

mode, *targets = sys.argv[1:]
ready, go = os.pipe(), os.pipe()
waited = False
replace = os.replace

def wait():
    global waited
    if not waited:
        waited = True
        os.write(ready[1], b"!")
        os.read(go[0], 1)

def replace_together(*args, **kwargs):
    wait()
    replace(*args, **kwargs)

pipes, kernels = [], [k for k in jit.kernels() if k.name in damaging.ARGUMENTS]
for target in targets:
    get, put = os.pipe()
    if os.fork() == 0:
        os.close(go[1])
        os.environ["GCODEC_TARGET"] = target
        names = []
        if mode == "together":
            wait()
        if mode == "racing":
            os.replace, store._PATIENCE = replace_together, -1.0
        with kernel_cache.watched(names.append):
            for kernel in kernels:
                arguments = damaging.ARGUMENTS[kernel.name]()
                kernel(*arguments)
                assert (arguments[-1] == damaging.RESULTS[kernel.name]).all()
        os.write(put, b"%d" % len(names))
        os._exit(0)
    pipes.append(get)
    os.close(put)
os.close(ready[1])
waiting = 0
while mode != "apart" and waiting < len(targets) and (more := os.read(ready[0], 99)):
    waiting += len(more)
os.close(go[1])
print(json.dumps([int(os.read(pipe, 9) or -1) for pipe in pipes]))
"""


def run_kernels(folder: Path, mode: str, *targets: str) -> list[int]:
    """Run a few kernels in a process per target; return how many kernels each one compiled."""
    if not hasattr(os, "fork"):
        pytest.skip("forks")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESSES, mode, *targets],
        cwd=ROOT,
        env={**os.environ, "GCODEC_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: list[int] = json.loads(done.stdout)
    assert all(number >= 0 for number in counts), done.stderr
    return counts


@pytest.mark.parametrize("mode", ["together", "racing"])
def test_processes_and_processors_share_a_directory(tmp_path: Path, mode: str) -> None:
    """Several processes for two processors write concurrently, and later ones compile nothing."""
    counts = run_kernels(tmp_path, mode, *TARGETS * (4 if LONG else 2))
    (build,) = tmp_path.iterdir()
    written = {path.name: path.read_bytes() for path in build.iterdir()}
    # Neither temporary files nor locks are left; one more file contains the entry.
    assert len(written) == len(TARGETS) * (len(damaging.ARGUMENTS) + 1)
    if mode == "together":  # one process compiles each kernel, and the others wait for it
        for k in range(len(TARGETS)):
            assert sum(counts[k :: len(TARGETS)]) == len(damaging.ARGUMENTS)
    else:
        assert min(counts) > 0
    assert run_kernels(tmp_path, "apart", *TARGETS) == [0] * len(TARGETS)
    assert {path.name: path.read_bytes() for path in build.iterdir()} == written


@needs_level
def test_code_for_another_processor_is_not_loaded(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = quick_kernels()[0]
    for target in TARGETS:
        monkeypatch.setenv("GCODEC_TARGET", target)
        assert kernel_cache.missing([kernel]) == [kernel]
        kernel_cache.code_of(kernel)
        assert not kernel_cache.missing([kernel])
    assert compilations == [kernel.name] * 2


def test_checked_code_and_code_of_another_compiler_are_not_loaded(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = quick_kernels()[0]
    for settings in ({}, {"GCODEC_CHECKED": "1"}):
        for version in ("", "9.9.9"):
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("GCODEC_CHECKED", raising=False)
                for name, value in settings.items():
                    patch.setenv(name, value)
                if version:
                    patch.setattr("llvmlite.__version__", version)
                assert kernel_cache.missing([kernel]) == [kernel]
                kernel_cache.code_of(kernel)
                assert not kernel_cache.missing([kernel])
    assert compilations == [kernel.name] * 4
    assert len(list(cache.iterdir())) == 4


def test_everything_that_determines_code_is_part_of_the_identity() -> None:
    own = processor.target()
    identities = [
        kernel_cache.identity_of("a", "int64", own),
        kernel_cache.identity_of("b", "int64", own),
        kernel_cache.identity_of("a", "int32", own),
        *(
            kernel_cache.identity_of("a", "int64", own._replace(**{field: "other"}))
            for field in own._fields
        ),
    ]
    assert len(set(identities)) == len(identities) == 7


NUMBA = {
    **{"OPT": "0", "CPU_NAME": "generic", "CPU_FEATURES": "", "ENABLE_AVX": "0"},
    **{"LOOP_VECTORIZE": "0", "SLP_VECTORIZE": "1", "DEBUGINFO": "1"},
}


@pytest.mark.parametrize(("checked", "opposite"), [("0", "1"), ("1", "0")])
def test_settings_of_numba_do_not_change_code(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: str, opposite: str
) -> None:
    """These settings are no part of a kernel's identity."""
    program = (
        "import hashlib\n"
        "from fuzz import kernel_cache as damaging\n"
        "from gcodec.runtime import jit, kernel_cache\n"
        "for kernel in jit.kernels():\n"
        "    if kernel.name in damaging.ARGUMENTS:\n"
        "        code = kernel_cache.code_of(kernel)\n"
        "        print(kernel.name, hashlib.sha256(code.packed()).hexdigest())\n"
    )
    monkeypatch.setenv("GCODEC_CHECKED", checked)
    others = {f"NUMBA_{k}": v for k, v in (NUMBA | {"BOUNDSCHECK": opposite}).items()}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **others, "GCODEC_CACHE_DIR": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        check=True,
    )
    own = []
    for kernel in quick_kernels():
        code = kernel_cache.code_of(fresh(kernel))
        own.append(f"{kernel.name} {hashlib.sha256(code.packed()).hexdigest()}")
    assert len(own) == len(damaging.ARGUMENTS)
    assert own == done.stdout.splitlines()


def test_cached_kernels_run_without_numba(tmp_path: Path) -> None:
    """Loading needs llvmlite only, which NumPy arrays and frames do not reveal."""
    program = (
        "import sys\n"
        "{before}\n"
        "import numpy as np, gcodec\n"
        "frame = gcodec.encode(np.ones(4, np.float32), 'sign')\n"
        "print(gcodec.decode(frame).tolist(), 'numba' in sys.modules)"
    )
    for before, said in (
        ("", "[1.0, 1.0, 1.0, 1.0] True\n"),
        ("", "[1.0, 1.0, 1.0, 1.0] False\n"),
        ("sys.modules['numba'] = None", "[1.0, 1.0, 1.0, 1.0] True\n"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(before=before)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "GCODEC_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.stderr) == (said, "")


@jit.kernel("in uint8[], out uint8[]")
def _copy_first(source, target):
    target[0] = source[0]


def test_kernels_outside_the_package_are_not_cached(cache: Path, compilations: list[str]) -> None:
    """The build id does not cover their source, so a cached file could be stale."""
    for _ in range(2):
        target = np.zeros(1, np.uint8)
        fresh(_copy_first)(np.full(1, 7, np.uint8), target)
        assert target[0] == 7
    assert compilations == [_copy_first.name] * 2
    assert not [path.name for path in cache.iterdir() if not path.name.startswith("entry.")]


# --- locks --------------------------------------------------------------------------------------

# The process prints "compiling" when it holds the lock of a kernel, and what it has compiled.
HOLDER = """
import sys, time
from fuzz import kernel_cache as damaging
from gcodec.runtime import jit, kernel_cache

def report(name):
    print("compiling", flush=True)
    time.sleep(float(sys.argv[1]))

kernel = [k for k in jit.kernels() if k.name in damaging.ARGUMENTS][0]
with kernel_cache.watched(report):
    kernel_cache.code_of(kernel)
print("ready")
"""


@contextlib.contextmanager
def holder(seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the lock of a kernel for some time, or until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def locks(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name.endswith(".lock")]


def test_a_process_waits_for_the_one_that_compiles(cache: Path, compilations: list[str]) -> None:
    kernel = quick_kernels()[0]
    with holder(2) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "compiling\n"
        assert locks(cache) == [f".{FileOf(kernel.name, kernel.signature).name}.lock"]
        code = kernel_cache.code_of(kernel)
        assert process.wait(60) == 0
    assert code and not compilations
    assert not kernel_cache.missing([kernel]) and not locks(cache)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_killed_process_blocks_nobody(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    """The system releases the lock of a process that dies before or while another one waits."""
    monkeypatch.setattr(store, "_PATIENCE", 600.0)
    kernel = quick_kernels()[0]
    with holder(600) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "compiling\n"
        killer = threading.Timer(0.5 if waiting else 0.0, process.kill)
        killer.start()
        if not waiting:
            killer.join()
            process.wait(60)
        assert len(locks(cache)) == 1  # the dead process could not remove it
        started = time.monotonic()
        kernel_cache.code_of(kernel)
        assert time.monotonic() - started < 60
        killer.join()
    assert compilations == [kernel.name]
    assert not kernel_cache.missing([kernel]) and not locks(cache)


def test_patience_has_an_end(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PATIENCE", 0.1)
    kernel = quick_kernels()[0]
    file = FileOf(kernel.name, kernel.signature)
    with store.opened(cache) as directory, directory.locked(file.name):
        kernel_cache.code_of(kernel)
        assert compilations == [kernel.name]
        assert file.is_whole(cache)
        # The lock is still that of the other owner.
        assert locks(cache) == [f".{file.name}.lock"]
    assert not locks(cache)


def test_file_systems_without_locks(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> bool:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(store, "_try_lock", refuse)
    kernel = quick_kernels()[0]
    code = kernel_cache.code_of(kernel)
    assert kernel_cache.code_of(kernel) == code
    assert compilations == [kernel.name]
    assert not locks(cache)


def test_an_interrupt_while_another_process_has_the_lock(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> bool:
        for name in locks(cache):
            (cache / name).unlink()  # as the other process does in the end
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_try_lock", interrupt)
    with pytest.raises(KeyboardInterrupt):
        kernel_cache.code_of(quick_kernels()[0])


def test_a_failed_compilation_releases_the_lock(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = quick_kernels()[0]
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.config.DISABLE_JIT", 1)
        with pytest.raises(CompilerDisabled):
            kernel_cache.code_of(kernel)
    assert not list(cache.iterdir())
    kernel_cache.code_of(kernel)
    assert not kernel_cache.missing([kernel])


@pytest.mark.parametrize("by_path", [False, True])
def test_one_owner_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool
) -> None:
    """Also while owners remove the files of their locks, and on systems without descriptors."""
    monkeypatch.setattr(store, "_BY_PATH", by_path)
    monkeypatch.setattr(store, "_POLL", 1e-4)
    owners, most = [0], [0]

    def own() -> None:
        with store.opened(tmp_path / "cache") as directory:
            for _ in range(100):
                with directory.locked("kernel"):
                    owners[0] += 1
                    most[0] = max(most[0], owners[0])
                    time.sleep(1e-5)
                    owners[0] -= 1

    threads = [threading.Thread(target=own) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (owners, most) == ([0], [1])
    assert not list((tmp_path / "cache").iterdir())


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
    assert kernel_cache.directory() is None
    assert kernel_cache.fault() == "The user has no home directory."


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these have their own folders")
def test_paths_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with settings expands no ~, and XDG's directories must be absolute."""
    home, name = tmp_path / "home", kernel_cache.location().name
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GCODEC_CACHE_DIR", "~/kernels")
    assert kernel_cache.location() == home / "kernels" / name
    monkeypatch.setenv("GCODEC_CACHE_DIR", "")
    for caches in ("", "caches", "./caches"):
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
        assert kernel_cache.location() == home / ".cache" / "gcodec" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert kernel_cache.location() == tmp_path / "caches" / "gcodec" / name


# --- a second user ------------------------------------------------------------------------------


# Another user may be unable to read Python's files, so all imports precede the change of the user.
AS_USER = """
import os, sys
import numpy as np
import gcodec
from gcodec.kernels.numeric import arithmetic; from gcodec.runtime import jit, kernel_cache
kernel_cache.build_id()
if sys.argv[2] == "compile":
    from gcodec.runtime import entry
    kernel_cache.code_of(jit.kernel("int64")(lambda x: x + 1))
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
print(kernel_cache.directory())
print(kernel_cache.fault())
"""
PLANT = """
victims = {folder!r}
os.rename(victims, victims + ".old")
os.makedirs(victims + "/" + kernel_cache.location().name)
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
compiled = []
with kernel_cache.watched(compiled.append):
    arithmetic.add_scaled(np.ones(1, np.float32), np.float32(2), x)
print(x[0], len(compiled), kernel_cache.fault())
"""


@as_root
def test_other_users_read_the_cache_of_root(public: Path) -> None:
    """A container may be built by root, and run by a user without an account."""
    cache = public / "cache"
    assert run_as(0, RUN, cache, "compile").stdout == "2.0 1 \n"
    (build,) = cache.iterdir()
    for path in (cache, build):
        path.chmod(0o755)
    files = list(build.iterdir())  # of the kernel and of the entry
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 2
    said = f"Nothing can be written to {build}.\n"
    assert run_as(VICTIM, RUN, cache, "compile").stdout == "2.0 1 " + said
    for mode, compiled in ((0o644, 0), (0o646, 1)):
        for file in files:
            file.chmod(mode)
        assert run_as(VICTIM, RUN, cache, "compile").stdout == f"2.0 {compiled} " + said
    assert sorted(build.iterdir()) == sorted(files)


# --- no compiler --------------------------------------------------------------------------------


def test_a_disabled_compiler_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in the cache run without it."""
    kernel = quick_kernels()[0]
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.config.DISABLE_JIT", 1)
        with pytest.raises(CompilerDisabled, match="unset the environment variable NUMBA_DISABLE"):
            fresh(kernel)(*damaging.ARGUMENTS[kernel.name]())
    assert issubclass(CompilerDisabled, gcodec.GcodecError)
    kernel_cache.code_of(kernel)
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    arguments = damaging.ARGUMENTS[kernel.name]()
    fresh(kernel)(*arguments)
    assert np.array_equal(arguments[-1], damaging.RESULTS[kernel.name])


def test_the_first_call_reports_a_disabled_compiler(cache: Path) -> None:
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
        "gcodec.errors.CompilerDisabled: Numba's compiler is disabled, and gcodec cannot "
        "compile kernels without it: unset the environment variable NUMBA_DISABLE_JIT, and start "
        "Python again."
    )
