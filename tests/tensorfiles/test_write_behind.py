"""Test that chunks are written in their order on a thread, and that its errors are raised."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.tensorfiles import atomic
from gcodec.tensorfiles.atomic import WriteBehind, atomic_write

LARGE = 1 << 20


def test_chunks_keep_their_order(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    chunks = [random.bytes(size) for size in (LARGE, 3, 2 * LARGE + 1, LARGE, 0, LARGE - 1, LARGE)]
    with atomic_write(tmp_path / "x") as file, WriteBehind(file) as behind:
        for chunk in chunks:
            behind.write(chunk)
    assert (tmp_path / "x").read_bytes() == b"".join(chunks)


def test_the_caller_goes_on_while_a_chunk_is_written() -> None:
    may_end, writers = threading.Event(), list[threading.Thread]()

    class Slow:
        def write(self, data: bytes) -> int:
            writers.append(threading.current_thread())
            assert may_end.wait(60)
            return len(data)

    slow: Any = Slow()
    with WriteBehind(slow) as behind:
        behind.write(bytes(LARGE))  # would wait for ever on this thread
        may_end.set()
        behind.write(b"small")
    assert writers[0] is not threading.current_thread() is writers[1]


@pytest.mark.parametrize("sizes", [(LARGE,), (LARGE, LARGE), (LARGE, 1)])
def test_errors_of_the_thread_are_raised(sizes: tuple[int, ...]) -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    full: Any = Full()
    with pytest.raises(OSError, match="No space left"), WriteBehind(full) as behind:
        for size in sizes:
            behind.write(bytes(size))


def test_an_error_of_the_caller_is_the_one_that_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(KeyError), atomic_write(path) as file, WriteBehind(file) as behind:
        behind.write(bytes(LARGE))
        raise KeyError
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="/dev/full") as caught:
        gcodec.save_file([np.ones(LARGE, np.float32)] * 2, "/dev/full", "raw")
    assert caught.value.filename == "/dev/full"


def test_large_tensors_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    tree = {f"w{k}": random.standard_normal(size) for k, size in enumerate((LARGE, 5, LARGE))}
    gcodec.save_file(tree, tmp_path / "x.gcf", "lossless")
    loaded = gcodec.load_file(tmp_path / "x.gcf")
    assert all(np.array_equal(loaded[name], tree[name]) for name in tree)
    assert atomic._LEAST_BEHIND <= LARGE
