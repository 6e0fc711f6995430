"""Stores of the steps of a training: chains, anchors, retention, crashes and damage."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import stat
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gcodec
from gcodec.patch import store as module
from gcodec.tensorfiles.frame_list import outlines


def states(count: int) -> list[dict[str, Any]]:
    """Return the tensors of consecutive steps, of which few elements change."""
    rng = np.random.default_rng(1)
    layer = rng.standard_normal((40, 50)).astype(ml_dtypes.bfloat16)
    steps, bias = [], rng.standard_normal(50).astype(np.float32)
    for step in range(count):
        bits = layer.view(np.uint16).copy()
        bits[rng.random(bits.shape) < 0.02] += 1
        layer = bits.view(layer.dtype)
        bias = bias + np.float32(1e-4)
        steps.append({"layer": {"w": layer, "b": bias}, "rate": 0.5 / (step + 1), "n": step})
    return steps


def assert_same(actual: Any, expected: Any) -> None:
    assert actual.keys() == expected.keys()
    assert (actual["rate"], actual["n"]) == (expected["rate"], expected["n"])
    for name, array in expected["layer"].items():
        other = actual["layer"][name]
        assert other.dtype == array.dtype and other.tobytes() == array.tobytes()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_repr(tmp_path: Path) -> None:
    for options, keep in (({"keep": 3}, 3), ({}, 2)):
        store = gcodec.PatchStore(tmp_path, **options)
        assert repr(store) == f"<PatchStore {str(tmp_path)!r}: anchor_every=16, keep={keep}>"


def test_every_kept_step_loads(tmp_path: Path) -> None:
    steps = states(11)
    store = gcodec.PatchStore(tmp_path / "new" / "folder", anchor_every=4, keep=2)
    for step, tree in enumerate(steps):
        store.publish(10 * step, tree)
        assert_same(gcodec.PatchStore(store.folder).load().tree, tree)
    # Anchors are at steps 0, 40 and 80, and the first one is no longer kept.
    assert store.steps() == list(range(40, 101, 10))
    assert sum(name.endswith(".anchor.gcf") for name in names(store.folder)) == 2
    for step in store.steps():
        snapshot = gcodec.PatchStore(store.folder).load(step)
        assert snapshot.step == step
        assert_same(snapshot.tree, steps[step // 10])
    with pytest.raises(gcodec.ParameterError, match=r"^step=30: must be one of the store's steps"):
        store.load(30)


def test_readers_catch_up(tmp_path: Path) -> None:
    steps = states(7)
    writer = gcodec.PatchStore(tmp_path, anchor_every=3, keep=9)
    reader = gcodec.PatchStore(tmp_path)
    writer.publish(0, steps[0])
    own = reader.load()
    for step in range(1, 7):
        writer.publish(step, steps[step])
    kept = own.tree["layer"]["w"].copy()
    for step in (0, 1, 4, 6):
        later = reader.catch_up(own.tree, 0, step)
        assert later.step == step
        assert_same(later.tree, steps[step])
    assert (own.tree["layer"]["w"] == kept).all()
    assert_same(reader.catch_up(reader.load(4).tree, 4).tree, steps[6])
    with pytest.raises(gcodec.ParameterError, match=r"base has the digest"):
        reader.catch_up(steps[3], 2, 3)
    with pytest.raises(gcodec.ParameterError, match=r"^step=6: must be at most 3"):
        reader.catch_up(steps[6], 6, 3)


class Layer(NamedTuple):
    """A container of two tensors."""

    w: Any
    b: Any


def test_results_are_like_a_tree(tmp_path: Path) -> None:
    store, steps = gcodec.PatchStore(tmp_path), states(3)
    for step, tree in enumerate(steps):
        store.publish(step, tree)
    first = steps[0]["layer"]
    like = {"layer": Layer(first["w"], first["b"].astype(np.float64)), "rate": 0, "n": 0}
    snapshot = store.load(1, like=like)
    assert_same(
        {**snapshot.tree, "layer": {"w": snapshot.tree["layer"].w}},
        {**steps[1], "layer": {"w": steps[1]["layer"]["w"]}},
    )
    assert isinstance(snapshot.tree["layer"], Layer)
    assert snapshot.tree["layer"].b.dtype == np.float64
    assert (snapshot.tree["layer"].b == steps[1]["layer"]["b"]).all()
    for wrong, message in (
        ({"layer": first, "rate": 0}, "lacks 'n'"),
        ({**steps[0], "layer": {**first, "b": first["b"][1:]}}, r"tensor 'tree.layer.b': like.sh"),
    ):
        with pytest.raises(gcodec.ParameterError, match=message):
            store.load(like=wrong)


def test_readers_with_tensors_of_torch_catch_up(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    store, steps = gcodec.PatchStore(tmp_path), states(4)
    model = {"w": torch.zeros(40, 50, dtype=torch.bfloat16), "b": torch.zeros(50)}
    for step, tree in enumerate(steps):
        store.publish(step, tree["layer"])
    first = store.load(0, like=model)
    for start in (first, store.catch_up(first.tree, 0, 2, like=first.tree)):
        own = store.catch_up(start.tree, start.step, like=model)
        assert own.step == 3
        for name, expected in steps[3]["layer"].items():
            actual = own.tree[name]
            assert actual.dtype == model[name].dtype
            assert actual.view(torch.uint8).numpy().tobytes() == expected.tobytes()
    same = store.catch_up(own.tree, 3, like=steps[3]["layer"]).tree
    assert isinstance(same["w"], np.ndarray)
    assert same["w"].tobytes() == steps[3]["layer"]["w"].tobytes()


def test_reader_that_is_too_far_behind_starts_from_an_anchor(tmp_path: Path) -> None:
    steps = states(9)
    writer = gcodec.PatchStore(tmp_path, anchor_every=2, keep=1)
    writer.publish(0, steps[0])
    own = gcodec.PatchStore(tmp_path).load()
    for step in range(1, 9):
        writer.publish(step, steps[step])
    assert min(writer.steps()) > 0
    assert_same(writer.catch_up(own.tree, own.step).tree, steps[8])


def test_a_new_writer_continues(tmp_path: Path) -> None:
    steps = states(4)
    for step, tree in enumerate(steps):
        gcodec.PatchStore(tmp_path).publish(step, tree)
    assert sum(name.endswith(".patch.gcf") for name in names(tmp_path)) == 3
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[3])
    with pytest.raises(gcodec.ParameterError, match=r"^step=3: must be above 3"):
        gcodec.PatchStore(tmp_path).publish(3, steps[3])


def test_writers_may_take_turns(tmp_path: Path) -> None:
    """Each one patches the last step, and not the last step of its own."""
    steps, writers = states(4), [gcodec.PatchStore(tmp_path) for _ in range(2)]
    for step, tree in enumerate(steps):
        writers[step % 2].publish(step, tree)
    patches = {f"{step - 1:012}-{step:012}.patch.gcf" for step in (1, 2, 3)}
    assert names(tmp_path) == {f"{0:012}.anchor.gcf", *patches}
    assert_same(gcodec.PatchStore(tmp_path).catch_up(steps[2], 2).tree, steps[3])


def test_caller_may_change_published_tensors(tmp_path: Path) -> None:
    store, tree = gcodec.PatchStore(tmp_path), {"w": np.zeros(3000, np.float32)}
    for step in range(3):
        tree["w"][step] = 1
        store.publish(step, tree)
    assert store.load(1).tree["w"].sum() == 2


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_8_bits_are_published(tmp_path: Path, dtype: type) -> None:
    store, x = gcodec.PatchStore(tmp_path), np.linspace(-2, 2, 50).astype(dtype)
    store.publish(0, {"w": x})
    x[7] = 1
    store.publish(1, {"w": x})
    loaded = gcodec.PatchStore(tmp_path).load().tree["w"]
    assert loaded.dtype == dtype and loaded.tobytes() == x.tobytes()


def test_tensors_come_go_and_change_their_shape(tmp_path: Path) -> None:
    store = gcodec.PatchStore(tmp_path)
    trees: list[dict[str, Any]] = [
        {"a": np.ones(5, np.float32)},
        {"a": np.ones(5, np.float16), "b": np.arange(4)},
        {"b": np.arange(6)},
    ]
    for step, tree in enumerate(trees):
        store.publish(step, tree)
    for step, tree in enumerate(trees):
        loaded = store.load(step).tree
        assert loaded.keys() == tree.keys()
        assert all(loaded[k].tobytes() == tree[k].tobytes() for k in tree)
    for empty in ({}, {"a": 3}):
        with pytest.raises(gcodec.ParameterError, match=r"^tree: has 0 tensors"):
            store.publish(9, empty)


@pytest.mark.parametrize("failed", ["write", "fsync", "replace"])
@pytest.mark.parametrize("at", [0, 1])
def test_crashes_leave_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str, at: int
) -> None:
    """A crash while a patch is written, or while the anchor after it is written."""
    steps = states(4)
    store = gcodec.PatchStore(tmp_path, anchor_every=2)
    store.publish(0, steps[0])
    store.publish(1, steps[1])
    before, calls = names(tmp_path), 0

    def crash(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > at * {"write": 2, "fsync": 2, "replace": 1}[failed]:
            raise OSError(28, "No space left on device")
        return own(*arguments)

    if failed == "write":
        own = module.shortest_frame
        monkeypatch.setattr(module, "shortest_frame", crash)
    else:
        own = getattr(os, failed)
        monkeypatch.setattr(os, failed, crash)
    with pytest.raises(OSError, match="No space left"):
        store.publish(2, steps[2])
    monkeypatch.undo()
    assert names(tmp_path) == before
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[1])
    store.publish(2, steps[2])
    store.publish(3, steps[3])
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[3])


def test_step_is_withdrawn_if_its_name_may_not_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, own = gcodec.PatchStore(tmp_path, anchor_every=1), os.fsync

    def fsync_fails(number: int, text: str) -> None:
        def fsync(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, text)
            own(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    if os.name == "posix":
        fsync_fails(errno.EIO, "Input/output error")
        with pytest.raises(OSError, match="Input/output error"):
            store.publish(0, {"w": np.ones(3)})
        assert names(tmp_path) == set()
        fsync_fails(errno.EINVAL, "Invalid argument")  # the system cannot flush folders
    store.publish(0, {"w": np.ones(3)})
    assert store.steps() == [0]


def test_files_that_cannot_be_deleted_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, store = states(4), gcodec.PatchStore(tmp_path, anchor_every=1, keep=1)
    store.publish(0, steps[0])

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "another process uses the file", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        store.publish(1, steps[1])
        store.publish(2, steps[2])
    assert len(names(tmp_path)) == 5
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[2])
    store.publish(3, steps[3])
    assert names(tmp_path) == {"000000000003.anchor.gcf"}


@pytest.mark.parametrize("published", [0, 1])
def test_temporary_files_of_a_crash_are_ignored_and_deleted(
    tmp_path: Path, published: int
) -> None:
    steps = states(2)
    for step in range(published):
        gcodec.PatchStore(tmp_path).publish(step, steps[step])
    left = tmp_path / ".gcodec-0123456789abcdef.tmp"
    left.write_bytes(b"half")
    assert gcodec.PatchStore(tmp_path).steps() == list(range(published))
    gcodec.PatchStore(tmp_path).publish(1, steps[1])
    assert not left.exists()


@pytest.mark.skipif(os.name != "posix", reason="locks of folders")
def test_one_writer_publishes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, own, own_open = states(3), module.shortest_frame, os.open
    first, second = gcodec.PatchStore(tmp_path), gcodec.PatchStore(tmp_path)
    first.publish(0, steps[0])
    copies: list[int] = []

    def open_and_copy(*arguments: Any, **options: Any) -> int:
        descriptor = own_open(*arguments, **options)
        copies.append(os.dup(descriptor))  # as a fork does
        return descriptor

    def interrupt(*arguments: Any) -> Any:
        if second.steps() == [0]:
            with pytest.raises(BlockingIOError, match="another writer publishes") as caught:
                second.publish(1, steps[2])
            assert caught.value.filename == str(tmp_path)
        return own(*arguments)

    monkeypatch.setattr(module, "shortest_frame", interrupt)
    monkeypatch.setattr(os, "open", open_and_copy)
    first.publish(1, steps[1])
    with pytest.raises(gcodec.ParameterError, match=r"^step=1: must be above 1"):
        second.publish(1, steps[2])
    second.publish(2, steps[2])
    monkeypatch.undo()
    for descriptor in copies:
        os.close(descriptor)
    assert sum(name.endswith(".patch.gcf") for name in names(tmp_path)) == 2
    assert_same(gcodec.PatchStore(tmp_path).load(1).tree, steps[1])
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[2])


@pytest.mark.skipif(os.name != "posix", reason="locks of folders")
def test_writers_leave_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, own_open = list[int](), os.open

    def recorded(*arguments: Any, **options: Any) -> int:
        opened.append(own_open(*arguments, **options))
        return opened[-1]

    store, other = gcodec.PatchStore(tmp_path), gcodec.PatchStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", recorded)
        with module._locked(tmp_path), pytest.raises(BlockingIOError):
            other.publish(0, {"w": np.ones(3)})
        store.publish(0, {"w": np.ones(3)})
    assert len(opened) > 2
    for descriptor in opened:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(descriptor)


@pytest.mark.skipif(os.name != "posix", reason="locks of folders")
def test_systems_without_locks_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    store = gcodec.PatchStore(tmp_path)
    store.publish(0, {"w": np.ones(3)})
    assert store.steps() == [0]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damaged_files_are_noticed_and_avoided(tmp_path: Path) -> None:
    steps = states(6)
    store = gcodec.PatchStore(tmp_path, anchor_every=3, keep=5)
    for step, tree in enumerate(steps):
        store.publish(step, tree)
    own = store.load(1)
    damage(tmp_path / "000000000002-000000000003.patch.gcf")
    assert_same(store.catch_up(own.tree, 1, 3).tree, steps[3])  # from the anchor of step 3
    damage(tmp_path / "000000000003.anchor.gcf")
    with pytest.raises(gcodec.FormatError, match=r"^000000000002-000000000003\.patch\.gcf: fr"):
        store.catch_up(own.tree, 1, 3)
    assert_same(store.load(2).tree, steps[2])
    with pytest.raises(gcodec.FormatError, match=r"^000000000003\.anchor\.gcf: frame"):
        gcodec.PatchStore(tmp_path).load()
    # A writer that cannot read the last step publishes an anchor.
    gcodec.PatchStore(tmp_path).publish(6, steps[5])
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[5])


def test_damaged_stores_are_read_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 30
    store = gcodec.PatchStore(tmp_path, anchor_every=1, keep=count)
    for step in range(count):
        store.publish(step, {"x": np.full(3, step, np.float32)})
    opened: list[Path] = []
    tensor_file = module.TensorFile

    def counted(path: Path, *args: Any) -> Any:
        opened.append(path)
        return tensor_file(path, *args)

    monkeypatch.setattr(module, "TensorFile", counted)
    (tmp_path / f"{count - 1:012}.anchor.gcf").unlink()
    last = tmp_path / f"{count - 2:012}-{count - 1:012}.patch.gcf"
    damage(last)
    with pytest.raises(gcodec.FormatError, match=rf"^{last.name}: frame"):
        gcodec.PatchStore(tmp_path).load()
    assert len(opened) <= 9 * count  # and not count**2 / 2
    # Damaged anchors alone cost one file each, however many there are.
    opened.clear()
    for step in range(1, count - 1):
        damage(tmp_path / f"{step:012}.anchor.gcf")
    assert store.load(count - 2).tree["x"][0] == count - 2
    assert len(opened) == 2 * (count - 1) - 1


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has pipes in folders")
def test_pipes_devices_and_folders_are_no_files_of_a_store(tmp_path: Path) -> None:
    tree = states(1)[0]
    store = gcodec.PatchStore(tmp_path)
    store.publish(0, tree)
    os.mkfifo(tmp_path / "000000000001.anchor.gcf")
    (tmp_path / "000000000002.anchor.gcf").symlink_to(os.devnull)
    (tmp_path / "000000000003.anchor.gcf").symlink_to("000000000003.anchor.gcf")
    (tmp_path / "000000000000-000000000004.patch.gcf").mkdir()
    assert store.steps() == [0]
    assert_same(gcodec.PatchStore(tmp_path).load().tree, tree)


@pytest.mark.parametrize("is_new", [False, True])
def test_writer_starts_anew_without_the_anchors(tmp_path: Path, is_new: bool) -> None:
    steps = states(3)
    store = gcodec.PatchStore(tmp_path)
    store.publish(0, steps[0])
    store.publish(1, steps[1])
    (tmp_path / "000000000000.anchor.gcf").unlink()
    with pytest.raises(gcodec.ParameterError, match="a step that an anchor leads to"):
        store.load()
    (gcodec.PatchStore(tmp_path) if is_new else store).publish(2, steps[2])
    assert_same(store.load().tree, steps[2])


def test_files_of_two_histories_are_noticed_and_avoided(tmp_path: Path) -> None:
    steps = states(8)
    store, other = (gcodec.PatchStore(tmp_path / k, anchor_every=2, keep=9) for k in "ab")
    for step in range(4):
        store.publish(step, steps[step])
        other.publish(step, steps[step + 4])
    os.replace(*(each.folder / "000000000002.anchor.gcf" for each in (other, store)))
    assert_same(store.load(3).tree, steps[3])  # from the anchor of step 0
    (store.folder / "000000000000.anchor.gcf").unlink()
    with pytest.raises(gcodec.Corrupt, match=r"^000000000002-000000000003\.patch\.gcf: tensor"):
        store.load(3)
    assert_same(store.catch_up(steps[0], 0, 3).tree, steps[3])


def test_patch_of_another_history_after_a_right_one_is_avoided(tmp_path: Path) -> None:
    steps = states(6)
    store, other = (gcodec.PatchStore(tmp_path / k, anchor_every=1, keep=9) for k in "ab")
    for step in range(3):
        store.publish(step, steps[step])
        other.publish(step, steps[step + 3])
    os.replace(*(each.folder / f"{1:012}-{2:012}.patch.gcf" for each in (other, store)))
    assert_same(store.catch_up(steps[0], 0).tree, steps[2])  # from the anchor of step 2
    with pytest.raises(gcodec.ParameterError, match="has the digest"):
        store.catch_up(steps[1], 1)


@pytest.mark.parametrize("base", [5, 9])
def test_patches_on_later_steps_are_ignored(tmp_path: Path, base: int) -> None:
    tree = states(1)[0]
    store = gcodec.PatchStore(tmp_path)
    store.publish(0, tree)
    (tmp_path / f"{base:012}-000000000005.patch.gcf").touch()
    assert store.steps() == [0]
    assert_same(store.load().tree, tree)


def test_errors_of_a_tensor_name_it(tmp_path: Path) -> None:
    store = gcodec.PatchStore(tmp_path)
    good = {"layer": [np.ones(3, np.float32)]}
    for wrong, kind, message in (
        (np.array(["a"]), TypeError, "x has dtype str32"),
        (np.ones((1,) * 40), gcodec.ParameterError, "x.ndim=40: must be at most 32"),
    ):
        with pytest.raises(kind, match=rf"^tensor 'tree\.layer\.1': {message}"):
            store.publish(0, {"layer": [*good["layer"], wrong]})
    assert store.steps() == []


def test_truncated_and_exchanged_files_are_refused(tmp_path: Path) -> None:
    steps = states(3)
    store = gcodec.PatchStore(tmp_path, keep=5)
    for step, tree in enumerate(steps):
        store.publish(step, tree)
    first, second = (tmp_path / f"00000000000{k}-00000000000{k + 1}.patch.gcf" for k in (0, 1))
    data = first.read_bytes()
    ends = []
    at = 0
    for frame in gcodec.iter_frames(data):
        at += frame.nbytes
        ends.append(at)
    for end in (*ends[:-1], 0, 7):
        first.write_bytes(data[:end])
        with pytest.raises(gcodec.FormatError):
            store.load(1)
    first.write_bytes(second.read_bytes())
    with pytest.raises(gcodec.Corrupt):
        store.load(1)


@pytest.mark.parametrize("content", ["renamed", "list", "tree"])
def test_anchors_that_contain_another_step_or_none_are_refused(
    tmp_path: Path, content: str
) -> None:
    store, tree = gcodec.PatchStore(tmp_path), states(1)[0]
    store.publish(0, tree)
    anchor = (tmp_path / "000000000000.anchor.gcf").rename(tmp_path / "000000000007.anchor.gcf")
    if content != "renamed":
        anchor.unlink()
        gcodec.save_file({"list": [7, tree], "tree": tree}[content], anchor, "lossless")
    with pytest.raises(gcodec.Corrupt, match=r"anchor\.gcf: the file contains another step"):
        store.load(7)


def test_anchors_with_patches_are_noticed_and_avoided(tmp_path: Path) -> None:
    steps, store = states(2), gcodec.PatchStore(tmp_path, anchor_every=1)
    for step, tree in enumerate(steps):
        store.publish(step, tree)
    anchor = tmp_path / "000000000001.anchor.gcf"
    patch = tmp_path / "000000000000-000000000001.patch.gcf"
    anchor.write_bytes(patch.read_bytes())
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[1])
    patch.unlink()
    with pytest.raises(gcodec.Corrupt, match=anchor.name):
        gcodec.PatchStore(tmp_path).load()


def test_steps_are_published_although_no_file_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prune(store: Any) -> None:
        raise PermissionError(13, "the folder cannot be listed")

    monkeypatch.setattr(gcodec.PatchStore, "_prune", prune)
    gcodec.PatchStore(tmp_path).publish(3, states(1)[0])
    assert gcodec.PatchStore(tmp_path).load().step == 3


def test_readers_start_again_if_a_file_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = states(5)
    store = gcodec.PatchStore(tmp_path, anchor_every=2, keep=1)
    for step, tree in enumerate(steps[:2]):
        store.publish(step, tree)
    opened = module.TensorFile
    calls = 0

    def late(path: Path, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:  # meanwhile, the writer publishes and deletes
            for step in (2, 3, 4):
                store.publish(step, steps[step])
        return opened(path, *arguments)

    monkeypatch.setattr(module, "TensorFile", late)
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[4])


@pytest.mark.parametrize(("number", "is_retried"), [(errno.ESTALE, True), (errno.EIO, False)])
def test_readers_start_again_if_a_file_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_retried: bool
) -> None:
    store, opened, calls = gcodec.PatchStore(tmp_path), module.TensorFile, 0
    store.publish(0, states(1)[0])

    def fail_once(path: Path, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(module, "TensorFile", fail_once)
    if is_retried:
        assert_same(gcodec.PatchStore(tmp_path).load().tree, states(1)[0])
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            gcodec.PatchStore(tmp_path).load()


def test_readers_start_again_if_they_list_a_folder_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems list long folders in parts, and may leave out files that come or go meanwhile."""
    steps = states(2)
    store, own, calls = gcodec.PatchStore(tmp_path, anchor_every=1, keep=1), Path.iterdir, 0
    store.publish(0, steps[0])

    def partial(folder: Path) -> list[Path]:
        nonlocal calls
        calls += 1
        before = list(own(folder))
        if calls == 1:
            store.publish(1, steps[1])
        return [path for path in own(folder) if path in before]

    monkeypatch.setattr(Path, "iterdir", partial)
    assert_same(gcodec.PatchStore(tmp_path).load().tree, steps[1])
    with pytest.raises(gcodec.ParameterError, match="one of the store's steps"):
        gcodec.PatchStore(tmp_path).load(0)


def test_anchors_are_files_of_frames(tmp_path: Path) -> None:
    tree = states(1)[0]
    gcodec.PatchStore(tmp_path).publish(7, tree)
    document = gcodec.load_file(tmp_path / "000000000007.anchor.gcf")
    assert (document["step"], document["base"]) == (7, -1)
    assert_same(document["tree"], tree)


@pytest.mark.parametrize("name", ["anchor_every", "keep"])
def test_invalid_arguments(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(gcodec.ParameterError, match=name):
        gcodec.PatchStore(tmp_path, **options)
    with pytest.raises(
        gcodec.ParameterError, match=r"no steps yet: publish writes the first one$"
    ):
        gcodec.PatchStore(tmp_path).load()
    store = gcodec.PatchStore(tmp_path)
    for step in (-1, True, 1.0):
        with pytest.raises(gcodec.ParameterError, match=r"^step="):
            store.publish(step, {})  # type: ignore[arg-type]
    store.publish(0, {"x": np.ones(3, np.float32)})
    store.publish(1, {"x": np.ones(3, np.float32)})
    for step in (-1, 2, True, 1.0):
        with pytest.raises(gcodec.ParameterError, match=r"^step="):
            store.load(step)  # type: ignore[arg-type]
        with pytest.raises(gcodec.ParameterError, match=r"^step="):
            store.catch_up({}, 0, step)  # type: ignore[arg-type]
    for step in (-1, True, 1.0):
        with pytest.raises(gcodec.ParameterError, match=r"^step="):
            store.catch_up({}, step)  # type: ignore[arg-type]


# --- keys ---------------------------------------------------------------------------------------


def test_readers_need_the_key(tmp_path: Path) -> None:
    steps = states(4)
    for step, tree in enumerate(steps):  # each writer continues the store
        gcodec.PatchStore(tmp_path, anchor_every=3, key=b"secret").publish(step, tree)
    assert len(names(tmp_path)) == 5
    for step, tree in enumerate(steps):
        assert_same(gcodec.PatchStore(tmp_path, key=b"secret").load(step).tree, tree)
        with pytest.raises(gcodec.FormatError, match=r"anchor\.gcf: .*tag"):
            gcodec.PatchStore(tmp_path, key=b"another").load(step)
    with pytest.raises(gcodec.ParameterError, match=r"^key"):
        gcodec.PatchStore(tmp_path, key=b"")


def test_pickles_do_not_contain_the_key(tmp_path: Path) -> None:
    tree = states(1)[0]
    store = gcodec.PatchStore(tmp_path, key=b"secret")
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"^a PatchStore with a key cannot be pickled"):
            duplicate(store)
    store = gcodec.PatchStore(tmp_path, keep=3)
    store.publish(0, tree)
    for other in (pickle.loads(pickle.dumps(store)), copy.copy(store), copy.deepcopy(store)):
        assert repr(other) == repr(store)
        assert_same(other.load().tree, tree)


def test_files_without_tags_are_refused_and_a_writer_starts_anew(tmp_path: Path) -> None:
    steps = states(3)
    gcodec.PatchStore(tmp_path).publish(0, steps[0])
    store = gcodec.PatchStore(tmp_path, key=b"secret")
    with pytest.raises(gcodec.FormatError, match=r"000\.anchor\.gcf: .*tag"):
        store.load()
    store.publish(1, steps[1])
    assert_same(store.load().tree, steps[1])
    assert names(tmp_path) == {f"{step:012}.anchor.gcf" for step in (0, 1)}


def test_frames_of_another_step_are_refused(tmp_path: Path) -> None:
    """All frames are the writer's own, but a tensor is that of another step."""
    steps = states(2)

    def exchanged(key: bytes | None) -> Path:
        folder, files = tmp_path / str(key), list[list[bytes]]()
        store = gcodec.PatchStore(folder, anchor_every=1, key=key)
        for step, tree in enumerate(steps):
            store.publish(step, tree)
            data = (folder / f"{step:012}.anchor.gcf").read_bytes()
            files.append([data[each.start : each.end] for each in outlines(data)])
        (folder / f"{0:012}-{1:012}.patch.gcf").unlink()
        mixed = [*files[1][:-1], files[0][-1]]
        (folder / f"{1:012}.anchor.gcf").write_bytes(b"".join(mixed))
        return folder

    accepted = gcodec.PatchStore(exchanged(None)).load(1).tree
    with pytest.raises(AssertionError):
        assert_same(accepted, steps[1])
    with pytest.raises(gcodec.FormatError, match=r"001\.anchor\.gcf: .*tag"):
        gcodec.PatchStore(exchanged(b"secret"), key=b"secret").load(1)
