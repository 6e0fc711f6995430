"""The command as a process: exit codes, weight, signals and pipes."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import secrets
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import numpy as np
import pytest
from command_line import run
from example_files import DUMP as EXAMPLE
from example_files import ROOT

import gcodec
from gcodec.cli.main import cli
from gcodec.tensorfiles.dumps import write_dump

VERBS = cli.list_commands(click.Context(cli))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
HEAVY = (
    *("numpy", "rich", "numba", "scipy", "ml_dtypes", "safetensors", "gcodec.codec"),
    *("multiprocessing", "concurrent.futures", "statistics", "click.shell_completion", "decimal"),
)


def process(*args, **more):
    return subprocess.Popen(
        [sys.executable, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
        **more,
    )


def test_help_imports_no_heavy_module():
    """One process shows all help; modules that it has imported stay, so it names the culprit."""
    calls = [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)]
    script = (
        "import sys\n"
        "from gcodec.cli.main import main\n"
        f"for args in {calls!r}:\n"
        "    assert main(args, standalone_mode=False) == 0\n"
        f"    heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "    assert not heavy, (args, heavy)\n"
        "print('none')"
    )
    out, err = process("-c", script).communicate()
    assert out.splitlines()[-1] == "none", err


def test_version_of_the_module():
    out, err = process("-m", "gcodec", "--version").communicate()
    assert (out, err) == (f"gcodec, version {gcodec.__version__}\n", "")


def test_help_lists_every_verb():
    shown = run("--help").stdout
    assert all(f"\n  {verb} " in shown for verb in VERBS)
    assert "No such command" in run("nope", code=2).stderr


def test_exit_codes(tmp_path):
    frame = gcodec.encode(np.ones(4, np.float32), "raw")
    files = {
        "good.gcf": frame,
        "damaged.gcf": frame[:-1],
        "future.gcf": frame[:3] + b"\x63" + frame[4:],
        "cut.safetensors": EXAMPLE.read_bytes()[:1000],
        "text.npy": b"no numpy",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps(print, protocol=2))
        archive.writestr("evil/version", "3")
    expected = {
        "good.gcf": 0,
        "damaged.gcf": 1,
        "missing.npz": 2,
        "future.gcf": 3,
        "cut.safetensors": 3,
        "text.npy": 3,
        "evil.pt": 5,
    }
    for name, code in expected.items():
        result = run("inspect", tmp_path / name, code=code)
        assert not code or result.stderr.startswith(f"gcodec: {tmp_path / name}: ")
    run("inspect", tmp_path / "good.gcf", "--max-elems", "3", code=4)
    # The exit code is that of the worst file, and the good files are shown.
    result = run("inspect", *(tmp_path / name for name in files), tmp_path / "evil.pt", code=5)
    assert result.stdout.startswith("good.gcf")
    assert result.stderr.count("gcodec: ") == 5
    run("verify", tmp_path / "damaged.gcf", tmp_path / "good.gcf", code=1)
    run("inspect", code=2)


@pytest.mark.parametrize("name", ["GCODEC_NUM_THREADS", "GCODEC_KEPT_MIB", "GCODEC_TARGET"])
def test_invalid_variable_is_wrong_usage(name, monkeypatch):
    """Inspect would else take it for the refusal of each codec."""
    monkeypatch.setenv(name, "many")
    for args in (["inspect", EXAMPLE, "--max-nmse", "0.01"], ["codecs"]):
        result = run(*args, code=2)
        assert result.stdout == ""
        assert result.stderr.startswith(f"gcodec: {name}='many': must be ")


@pytest.mark.parametrize(
    "args",
    [
        ("inspect", "--max-nmse", "nan"),
        ("inspect", "--max-bits", "nan"),
        ("compare", EXAMPLE, "--max-nmse", "nan"),
    ],
    ids=lambda args: " ".join(map(str, args[::2])),
)
def test_nan_is_refused_as_a_bound(args):
    """No error exceeds NaN, so every tensor would pass."""
    assert "'nan': must be a number" in run(*args, EXAMPLE, code=2).stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bench", "--rounds", "abc"), "'abc': must be an integer from 1 to 1000"),
        (("bench", "--rounds", "0"), "'0': must be an integer from 1 to 1000"),
        (("bench", "--threads", "1.5"), "'1.5': must be an integer from 1 to 1024"),
        (("inspect", "--top", "0"), "'0': must be an integer of at least 1"),
        (("inspect", "--max-nmse", "0"), "'0': must be a number above 0"),
        (("inspect", "--max-bits", "few"), "'few': must be a number above 0"),
        (("compare", EXAMPLE, "--max-nmse", "-1"), "'-1': must be a number of at least 0"),
        (("encode", "--seed", "9" * 5000), "9...: must be an integer from 0 to 184467440737"),
        (("encode", "--policy", "\x1b[31m"), r"'\x1b[31m': No such file or directory"),
    ],
    ids=lambda value: " ".join(map(str, value))[:30] if isinstance(value, tuple) else "",
)
def test_messages_about_options_name_what_is_allowed(args, message):
    stderr = run(*args, EXAMPLE, code=2).stderr
    assert message in stderr and "\x1b" not in stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path, closed):
    """Output files do not take the descriptors of streams that a daemon has closed."""
    words = [sys.executable, "-m", "gcodec", "encode", "-c", "raw", str(EXAMPLE)]
    command = f"{shlex.join(words)} -o {shlex.quote(str(tmp_path / 'a.gcf'))} {closed}"
    subprocess.run(
        ["sh", "-c", command], check=True, capture_output=True, timeout=60, env=ENVIRONMENT
    )
    assert len(list(gcodec.iter_frames((tmp_path / "a.gcf").read_bytes()))) == 29


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no such device")
def test_frames_to_a_pipe(tmp_path):
    words = [sys.executable, "-m", "gcodec", "encode", "-q", "-c", "raw", str(EXAMPLE)]
    done = subprocess.run(
        [*words, "-o", "/dev/stdout"], check=True, capture_output=True, timeout=60, env=ENVIRONMENT
    )
    assert len(list(gcodec.iter_frames(done.stdout))) == 29


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_unreadable_file(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.touch(0)
    assert run("inspect", path, code=3).stderr == f"gcodec: {path}: Permission denied\n"


def test_unwritable_output(tmp_path):
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "a.gcf"
    result = run("encode", EXAMPLE, "-c", "raw", "-o", target, code=3)
    assert result.stderr.count("\n") == 1


def test_paths_in_messages_are_escaped(tmp_path):
    path = tmp_path / "a\x1b[31m.npz"
    path.write_bytes(b"")
    assert "\x1b" not in run("inspect", path, code=3).stderr


@pytest.mark.parametrize("verb", ["encode", "decode"])
def test_interrupted_run_leaves_no_file(tmp_path, monkeypatch, verb):
    x = np.ones(4, np.float32)
    source = tmp_path / "a.npz"
    if verb == "encode":
        write_dump(source, [("a", x), ("b", x)])
        args = ["encode", source, "-c", "raw"]
    else:
        source = tmp_path / "a.gcf"
        frames = [gcodec.encode(x, "raw", name=name) for name in "ab"]
        source.write_bytes(b"".join(frames))
        args = ["decode", source, "-o", tmp_path / "out.npz"]
    calls = []

    def interrupted(real):
        def call(*args, **more):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(*args, **more)

        return call

    monkeypatch.setattr(gcodec, "encode", interrupted(gcodec.encode))
    monkeypatch.setattr(gcodec.Frame, "decode", interrupted(gcodec.Frame.decode))
    run(*args, code=130)
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_signal_leaves_no_file(tmp_path, name, code):
    script = (
        "import signal, time, gcodec\n"
        # A shell starts background processes with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def slow(*args, **more):\n"
        "    print('encoding', flush=True)\n"
        "    time.sleep(60)\n"
        "gcodec.encode = slow\n"
        "from gcodec.cli.main import main\n"
        f"main(['encode', {str(EXAMPLE)!r}, '-c', 'raw', '-o', {str(tmp_path / 'a.gcf')!r}])"
    )
    with process("-c", script) as running:
        assert running.stdout.readline() == "encoding\n"
        assert len(list(tmp_path.iterdir())) == 1  # the unfinished file
        running.send_signal(getattr(signal, name))
        out, err = running.communicate(timeout=30)
        assert (running.returncode, out, err) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["click", "gcodec.cli.verbs.codecs"])
def test_interrupt_of_an_import_prints_nothing(module):
    script = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupter:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupter())\n"
        "sys.argv = ['gcodec', 'codecs']\n"
        "runpy.run_module('gcodec', run_name='__main__')"
    )
    with process("-c", script) as running:
        out, err = running.communicate(timeout=60)
        assert (running.returncode, out, err) == (-signal.SIGINT, "", "")


def test_interrupt_of_an_attribute_that_is_being_named(monkeypatch):
    """Until Python 3.11, an interrupt within ``__set_name__`` becomes a `RuntimeError`."""

    def interrupted(*args, **more):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(gcodec, "encode", interrupted)
    assert run("encode", EXAMPLE, "-c", "raw", "-o", "-", code=130).stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_while_an_object_is_freed(tmp_path, name, code):
    """Python drops exceptions of finalizers, such as those of the locks of imports."""
    script = (
        "import os, signal, time, gcodec\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Freed:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "        time.sleep(1)\n"
        "def slow(*args, **more):\n"
        "    Freed()\n"
        "    time.sleep(60)\n"
        "gcodec.encode = slow\n"
        "from gcodec.cli.main import main\n"
        f"main(['encode', {str(EXAMPLE)!r}, '-c', 'raw', '-o', {str(tmp_path / 'a.gcf')!r}])"
    )
    with process("-c", script) as running:
        out, err = running.communicate(timeout=30)
        assert (running.returncode, out, err) == (code, "", "")
    assert list(tmp_path.iterdir()) == []


def test_exit_of_a_finalizer_is_reported(tmp_path):
    """It is no signal."""
    script = (
        "import sys, gcodec\n"
        "class Freed:\n"
        "    def __del__(self):\n"
        "        sys.exit('of a finalizer')\n"
        "def freeing(*args, **more):\n"
        "    Freed()\n"
        "    return encode(*args, **more)\n"
        "encode, gcodec.encode = gcodec.encode, freeing\n"
        "from gcodec.cli.main import main\n"
        f"main(['encode', {str(EXAMPLE)!r}, '-c', 'raw', '-o', {str(tmp_path / 'a.gcf')!r}])"
    )
    with process("-c", script) as running:
        _, err = running.communicate(timeout=60)
    assert running.returncode == 0 and "SystemExit: of a finalizer" in err
    assert "unraisablehook" not in err


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("args", [["inspect", EXAMPLE], ["codecs", "--json"]])
def test_closed_pipe_is_no_error(args):
    with process("-m", "gcodec", *args) as running:
        running.stdout.close()
        err = running.stderr.read()
        assert running.wait(30) == 141
        assert err == ""


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="no such device")
@pytest.mark.parametrize("verb", ["verify", "dissect", "decode"])
def test_frames_from_a_named_pipe(tmp_path, verb):
    """Shells pass a pipe like this for <(...)."""
    frame = gcodec.encode(np.ones(4, np.float32), "raw", name="w")
    output = ["-o", str(tmp_path / "a.npz")] if verb == "decode" else []
    words = [sys.executable, "-m", "gcodec", verb, "/dev/stdin", *output]
    done = subprocess.run(words, input=frame, capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"stdin " if verb == "dissect" else b"/dev/stdin")


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_pauses_of_a_stream_that_does_not_wait_are_not_its_end(verb):
    """A frame is complete, so it could pass for the whole file."""
    start = gcodec.encode(np.ones(4, np.float32), "raw") if verb == "verify" else b"PK"
    source, target = os.pipe()
    os.set_blocking(source, False)
    os.write(target, start)
    try:
        out, err = process("-m", "gcodec", verb, "-", stdin=source).communicate(timeout=60)
    finally:
        os.close(source)
        os.close(target)
    assert (out, err) == ("", "gcodec: -: the stream is non-blocking, and has no bytes yet\n")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
@pytest.mark.parametrize(
    "args", [["verify", "/dev/zero"], ["verify", "-"], ["encode", "-", "-c", "raw", "-o", "-"]]
)
def test_endless_input_is_refused_by_its_first_bytes(tmp_path, args):
    script = (
        "import resource, sys\n"
        "from gcodec.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24))\n"
        "main(sys.argv[1:])"
    )
    with open("/dev/zero", "rb") as zeros:
        completed = subprocess.run(
            [sys.executable, "-c", script, *args],
            stdin=zeros,
            capture_output=True,
            text=True,
            env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
            timeout=60,
        )
    assert completed.returncode in (1, 3)
    assert re.search("bytes (do not begin with GCF|begin like no)", completed.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no such device")
@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_summary_does_not_follow_bytes_on_stdout(tmp_path, name):
    write_dump(tmp_path / "a.npz", [("w", np.ones(4, np.float32))])
    words = [sys.executable, "-m", "gcodec", "encode", "a.npz", "-c", "raw", "-o", name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, env=ENVIRONMENT, timeout=60)
    assert [frame.name for frame in gcodec.iter_frames(done.stdout)] == ["w"]
    assert done.stderr.startswith(b"a.npz -> stdout   1 tensor")


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@needs_full
@pytest.mark.parametrize(
    "args",
    [
        *(["inspect", "A.gcf"], ["inspect", "A.npz", "--json"], ["dissect", "A.gcf"]),
        *(["compare", "A.npz", "A.gcf"], ["verify", "A.gcf", "B.gcf"], ["seek", "-f", "A.gcf"]),
        *(["encode", "A.npz", "-c", "raw", "-o", "B.gcf"], ["decode", "A.gcf"]),
        *(["codecs"], ["--help"], ["inspect", "--help"], ["--version"]),
    ],
    ids=" ".join,
)
def test_error_names_full_standard_output(tmp_path, args):
    x = np.ones(4, np.float32)
    write_dump(tmp_path / "A.npz", [("w", x)])
    (tmp_path / "A.gcf").write_bytes(gcodec.encode(x, "raw", name="w"))
    if "B.gcf" in args and args[0] == "verify":
        (tmp_path / "B.gcf").write_bytes(gcodec.encode(x, "raw", name="w"))
    with FULL.open("w") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "gcodec", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
            cwd=tmp_path,
        )
    assert completed.returncode == 3, completed.stderr
    lines = [
        line for line in completed.stderr.splitlines() if not line.startswith("payloads were")
    ]
    assert lines == ["gcodec: standard output: No space left on device"]


@needs_full
def test_error_names_full_output_file(tmp_path):
    write_dump(tmp_path / "a.npz", [("w", np.ones(4, np.float32))])
    result = run("encode", tmp_path / "a.npz", "-c", "raw", "-o", FULL, code=3)
    assert result.stderr == "gcodec: /dev/full: No space left on device\n"
    document = run("encode", tmp_path / "a.npz", "-c", "raw", "-o", FULL, "--json", code=3)
    assert json.loads(document.stdout)["errors"][0]["file"] == "/dev/full"
    (tmp_path / "a.gcf").write_bytes(gcodec.encode(np.ones(4, np.float32), "raw", name="w"))
    result = run("seek", tmp_path / "a.gcf", "-o", FULL, code=3)
    assert result.stderr == "gcodec: /dev/full: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="other systems do not limit the size of files")
@pytest.mark.parametrize("flags", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_output_is_not_cut_without_an_error(tmp_path, flags):
    """The system writes the first bytes, and reports the error for the others."""
    script = (
        "import resource\n"
        "from gcodec.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"main(['inspect', '--json', {str(EXAMPLE)!r}])"
    )
    words = [sys.executable, *flags, "-c", script]
    environment = {name: text for name, text in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    with open(tmp_path / "out.json", "wb") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, env=environment)
    assert done.returncode == 3
    assert done.stderr == b"gcodec: standard output: File too large\n"


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("flags", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_full_pipe_that_does_not_wait_is_an_error(flags):
    source, target = os.pipe()
    os.set_blocking(target, False)
    words = [sys.executable, *flags, "-m", "gcodec", "dissect", str(ROOT / "examples" / "fc.gcf")]
    environment = {name: text for name, text in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    try:
        while True:  # fill it
            os.write(target, bytes(4096))
    except BlockingIOError:
        pass
    try:
        done = subprocess.run(words, stdout=target, stderr=subprocess.PIPE, env=environment)
    finally:
        os.close(source)
        os.close(target)
    message = b"gcodec: standard output: the stream is non-blocking, and is full\n"
    assert (done.returncode, done.stderr) == (3, message)


@pytest.mark.skipif(os.name != "posix", reason="other systems do not limit the size of files")
def test_error_names_the_full_copy_of_stdin(tmp_path):
    write_dump(tmp_path / "a.npz", [("w", np.ones(4096, np.float32))])
    script = (
        "import resource\n"
        "from gcodec.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "main(['encode', '-', '-c', 'raw', '-o', '-'])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script],
        input=(tmp_path / "a.npz").read_bytes(),
        capture_output=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
    )
    assert completed.returncode == 3 and not completed.stdout
    copy = rf"{re.escape(str(tmp_path))}/gcodec-\w+/stdin"
    assert re.fullmatch(rf"gcodec: {copy}: File too large\n", completed.stderr.decode())
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_failed_creation_names_the_target(tmp_path, monkeypatch):
    """As in a folder that is read-only, which root cannot try."""
    write_dump(tmp_path / "a.npz", [("w", np.ones(4, np.float32))])
    monkeypatch.setattr(secrets, "token_hex", lambda nbytes: "x" * 999)
    target = tmp_path / "out.gcf"
    result = run("encode", tmp_path / "a.npz", "-c", "raw", "-o", target, code=3)
    assert result.stderr == f"gcodec: {target}: File name too long\n"


def test_failed_write_names_the_target(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_dump(tmp_path / "a.npz", [("w", np.ones(4, np.float32))])
    monkeypatch.setattr(os, "fsync", refuse)
    result = run("encode", tmp_path / "a.npz", "-c", "raw", code=3)
    assert result.stderr == f"gcodec: {tmp_path / 'a.gcf'}: No space left on device\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
