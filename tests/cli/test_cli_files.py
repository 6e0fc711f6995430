"""`gcodec encode`, `decode` and `verify`: the files that they read and write."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from command_line import json_of, run
from example_files import DUMP as EXAMPLE
from example_files import ROOT

import gcodec
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump, write_dump

DATA = ROOT / "tests" / "data"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def load(path):
    with open_dump(path) as dump:
        return {entry.name: dump.load(entry) for entry in dump.entries}


def gaussian(*shape, dtype=np.float32):
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


def dump(folder, name="dump.safetensors", **tensors):
    write_dump(folder / name, (tensors or {"w": gaussian(4, 5)}).items())
    return folder / name


def frames_file(path, *frames):
    path.write_bytes(b"".join(frames))
    return path


# --- names


@pytest.mark.parametrize(
    "args",
    [
        *(["inspect", ""], ["dissect", ""], ["verify", ""], ["decode", ""], ["bench", ""]),
        *(["seek", "", "-o", "x.gcf"], ["encode", "", "-c", "raw"], ["compare", EXAMPLE, ""]),
        *(["diff", EXAMPLE, ""], ["apply", "", EXAMPLE], ["decode", EXAMPLE, "-o", ""]),
    ],
    ids=lambda args: " ".join(map(str, args)),
)
def test_empty_names_of_files_are_wrong_usage(args):
    assert "a name of a file must not be empty" in run(*args, code=2).stderr


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy", ".pt", ".PTH"])
def test_frames_are_not_written_under_the_name_of_another_format(tmp_path, suffix):
    source, target = dump(tmp_path), tmp_path / f"out{suffix}"
    frames = frames_file(tmp_path / "x.gcf", gcodec.encode(gaussian(5), "sign"))
    expected = f"gcodec: {target}: OUT must be a file named .gcf: it contains frames\n"
    for args in (["encode", source, "-c", "raw"], ["diff", source, source], ["seek", frames]):
        assert run(*args, "-o", target, "--force", code=2).stderr == expected
    assert not target.exists()


def test_files_of_frames_are_not_encoded(tmp_path):
    path = frames_file(tmp_path / "x.gcf", gcodec.encode(gaussian(5), "sign"))
    advice = "contains frames already: gcodec decode turns them into tensors\n"
    assert run("encode", path, "-c", "raw", "-f", code=2).stderr == f"gcodec: {path}: {advice}"
    args = ["encode", "-", "-c", "raw", "-o", tmp_path / "y.gcf"]
    assert run(*args, input=path.read_bytes(), code=2).stderr == f"gcodec: -: {advice}"


@pytest.mark.parametrize("name", ["\\structure", "\\members", "\\file:a"])
def test_tensors_with_the_names_of_other_frames_are_not_encoded(tmp_path, name):
    source, target = dump(tmp_path, **{name: gaussian(5), "w": gaussian(4)}), tmp_path / "x.gcf"
    reason = f"{source}: tensor {name!r} has a name that files of frames reserve"
    stderr = run("encode", source, "-c", "minmax", code=3).stderr
    assert stderr == f"gcodec: {reason}; exclude it with -L '!{name}'\n"
    for args in (["encode", source, "-c", "lossless"], ["diff", source, source]):
        assert run(*args, "-o", target, code=3).stderr == f"gcodec: {reason}\n"
    run("encode", source, "-c", "minmax", "-L", f"!{name}", "-o", target)
    assert list(gcodec.load_file(target)) == ["w"]
    suggestion = f"next: gcodec encode {source} -c minmax -L '!{name}'\n"
    assert run("inspect", source, "-c", "minmax").stderr.endswith(suggestion)


def test_auto_needs_a_target(tmp_path):
    for spec in ("auto", "auto:", "auto:x=1"):
        stderr = run("encode", dump(tmp_path), "-c", spec, code=2).stderr
        assert stderr.startswith(f"gcodec: codec='{spec}': must be auto:nmse=NMSE or ")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.parametrize("target", ["absent", "x.gcf"], ids=["absent", "itself"])
@pytest.mark.parametrize("verb", ["inspect", "verify", "decode"])
def test_links_that_lead_to_no_file_are_named(tmp_path, verb, target):
    """A similar name must not be suggested, because it would be that of the link."""
    path = tmp_path / "x.gcf"
    path.symlink_to(target)
    stderr = run(verb, path, code=2).stderr
    assert stderr == f"gcodec: {path}: is a link that leads to no file\n"


def test_message_on_the_suffix_names_the_file_once(tmp_path):
    path = tmp_path / "it's.txt"
    path.write_bytes(b"no tensors")
    stderr = run("inspect", path, code=2).stderr
    assert stderr.startswith(f"gcodec: {path}: must be a file named .safetensors, ")


@pytest.mark.parametrize("name", ["frames", "frames.bin", "frames.txt"])
def test_frames_under_another_name_are_recognized(tmp_path, name):
    path = frames_file(tmp_path / name, gcodec.encode(gaussian(5), "sign", name="w"))
    (frame,) = json_of("inspect", path)["files"][0]["frames"]
    assert frame["name"] == "w"
    assert json_of("compare", path, path)["total"]["nmse"] == 0
    stderr = run("encode", path, "-c", "raw", code=2).stderr
    assert "contains frames already" in stderr


@pytest.mark.parametrize("verb", [["bench"], ["advise", "--step-time", "1ms"]])
def test_unreadable_source_of_a_measurement_has_a_document(tmp_path, verb):
    path = tmp_path / "empty.npz"
    path.touch()
    (error,) = json_of(*verb, path, code=3)["errors"]
    assert (error["file"], error["exit_code"]) == (str(path), 3)


def test_output_below_a_file(tmp_path):
    path = frames_file(tmp_path / "x.gcf", gcodec.encode(gaussian(5), "sign"))
    target = path / "y.npz"
    stderr = run("decode", path, "-o", target, code=3).stderr
    assert stderr == f"gcodec: {target}: Not a directory\n"


# --- keys


def keyed_file(folder):
    """Write a tree of keyed frames, and files that contain the key and another one."""
    tree = {"w": gaussian(40, 50), "more": [gaussian(3)]}
    gcodec.save_file(tree, folder / "keyed.gcf", "qsgd:bucket=512", key=b"secret")
    keys = {"key": b"secret", "other": b"other", "empty": b"", "long": b"k" * 65}
    for name, key in keys.items():
        (folder / name).write_bytes(key)
    return folder / "keyed.gcf"


@pytest.mark.parametrize("verb", ["verify", "decode", "seek", "compare"])
def test_frames_with_a_tag_are_read_with_their_key_only(tmp_path, verb):
    path, out = keyed_file(tmp_path), tmp_path / "out.npz"
    args = {"decode": ["-o", out], "seek": ["-o", tmp_path], "compare": [path]}.get(verb, [])
    args = [verb, path, *args, *(["--force"] if verb in ("decode", "seek") else [])]
    before = path.read_bytes()
    message = "the frame is authenticated: pass a file with its key as --key-file"
    assert message in run(*args, code=3).stderr
    stderr = run(*args, "--key-file", tmp_path / "other", code=1).stderr
    assert "the frame does not bear the tag of this key" in stderr
    for name in ("empty", "long"):
        wrong = tmp_path / name
        stderr = run(*args, "--key-file", wrong, code=2).stderr
        assert stderr == f"gcodec: {wrong}: must contain a key of 1 to 64 bytes\n"
    assert path.read_bytes() == before and not out.exists()
    run(*args, "--key-file", tmp_path / "key")


@pytest.mark.parametrize("spec", ["sign", "lossless"])
def test_encode_writes_tags(tmp_path, spec):
    (tmp_path / "key").write_bytes(b"secret")
    source, path = tmp_path / "x.safetensors", tmp_path / "x.gcf"
    write_dump(source, [("w", gaussian(40, 50)), ("steps", np.arange(3))])
    run("encode", source, "-c", spec, "--key-file", tmp_path / "key")
    stderr = run("verify", path, code=3).stderr
    assert "the frame is authenticated" in stderr
    run("verify", path, "--key-file", tmp_path / "key")
    out = tmp_path / "out.safetensors"
    run("decode", path, "-o", out, "--key-file", tmp_path / "key")
    if spec == "lossless":
        assert out.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("spec", ["sign", "lossless"])
def test_decode_of_selected_tensors(tmp_path, spec):
    source, path, out = (tmp_path / name for name in ("x.safetensors", "x.gcf", "out.safetensors"))
    write_dump(source, [(name, gaussian(4, 5)) for name in ("a.weight", "a.bias", "b.bias")])
    run("encode", source, "-c", spec)
    document = json_of("decode", path, "-L", "*.bias", "-L", "!b.*", "-o", out)
    assert (document["tensors"], document["values"]) == (1, 20)
    decoded = load(out)
    assert list(decoded) == ["a.bias"]
    frames = {frame.name: frame for frame in gcodec.iter_frames(path)}
    np.testing.assert_array_equal(decoded["a.bias"], frames["a.bias"].decode())
    stderr = run("decode", path, "-L", "c.*", "-o", tmp_path / "none.npz", code=2).stderr
    assert stderr == f"gcodec: {path}: no tensor matches --layers c.*\n"
    assert not (tmp_path / "none.npz").exists()


def test_decode_and_seek_with_a_key(tmp_path):
    path, key = keyed_file(tmp_path), tmp_path / "key"
    run("decode", path, "-o", tmp_path / "out.npz", "--key-file", key)
    tensors = load(tmp_path / "out.npz")
    with gcodec.open(path, key=b"secret") as file:
        assert all((file[name] == tensors[name]).all() for name in file)
        plain = file.frame("w")
    for name, option in (("seek.gcf", "--log2-block=8"), ("strip.gcf", "--strip")):
        run("seek", path, option, "-o", tmp_path / name, "--key-file", key)
        with gcodec.open(tmp_path / name, key=b"secret") as file:
            assert (file["w"] == tensors["w"]).all()
            frame = file.frame("w")
            assert bytes(frame.payload.data) == bytes(plain.payload.data)
            assert (frame.seek is None) == (option == "--strip")


def test_frames_without_a_tag_are_refused_if_there_is_a_key(tmp_path):
    keyed_file(tmp_path)
    path = frames_file(tmp_path / "plain.gcf", gcodec.encode(gaussian(5), "sign"))
    stderr = run("verify", path, "--key-file", tmp_path / "key", code=1).stderr
    assert "the frame does not bear the tag of this key" in stderr


# --- encode


@pytest.mark.parametrize("spec", ["raw:dtype=bfloat16", "mxnet-2bit:threshold=auto"])
@pytest.mark.parametrize(
    "source",
    [EXAMPLE, *sorted(p for p in DATA.iterdir() if p.suffix != ".md")],
    ids=lambda p: p.name,
)
def test_bytes_match_the_library(tmp_path, source, spec):
    target = tmp_path / "out.gcf"
    run("encode", source, "-c", spec, "-o", target, "--seed", "7")
    expected = [
        gcodec.encode(x, spec, seed=derive_seed(7, name=name), name=name)
        for name, x in load(source).items()
    ]
    assert target.read_bytes() == b"".join(expected)


def test_round_trip_keeps_names_shapes_and_dtypes(tmp_path):
    tensors = {
        "a/b": gaussian(3, 4),
        "h": gaussian(7, dtype=np.float16),
        "b": gaussian(2, 2, dtype=ml_dtypes.bfloat16),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "x\n\x1b[31m": gaussian(5),
    }
    source = dump(tmp_path, **tensors)
    run("encode", source, "-c", "raw")
    encoded = source.with_suffix(".gcf")
    run("verify", encoded)
    for target in ("back.safetensors", "back.npz"):
        run("decode", encoded, "-o", tmp_path / target)
        loaded = load(tmp_path / target)
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype
            assert loaded[name].shape == tensor.shape
            assert loaded[name].tobytes() == tensor.tobytes()
    run("decode", encoded, "--force")
    assert load(source).keys() == tensors.keys()


def test_summary_and_json_of_encode(tmp_path):
    target = tmp_path / "a.gcf"
    result = run("encode", EXAMPLE, "-c", "mxnet-2bit", "-o", target)
    nbytes = target.stat().st_size
    bits = 8 * nbytes / 77_754
    assert f"{EXAMPLE} -> {target}   29 tensors   77,754 values   " in result.stdout
    assert f"{bits:.2f} bits/value   {4 * 77_754 / nbytes:.1f}x" in result.stdout
    again = ["encode", EXAMPLE, "-c", "mxnet-2bit", "-o", target, "--force"]
    assert run(*again, "-q").output == ""
    document = json_of(*again)
    assert document["schema"] == "gcodec.encode/1"
    (file,) = document["files"]
    assert (file["bytes"], file["values"], file["tensors"]) == (nbytes, 77_754, 29)
    assert file["bits_per_value"] == bits


def test_missed_targets_are_reported_once(tmp_path):
    weights = {"fc.weight": gaussian(60, 50), "fc.bias": gaussian(32), "few": gaussian(3)}
    source, target = dump(tmp_path, **weights), tmp_path / "a.gcf"
    command = ["encode", source, "-c", "ecsq:bits=1.5", "-o", target, "--force"]
    result = run(*command)
    expected = (
        "2 tensors cannot meet bits=1.5 and got the nearest: fc.bias (4), few (42.7); "
        "strict=yes refuses such tensors\n"
    )
    assert result.stderr == expected
    assert run(*command, "--quiet").output == ""
    (file,) = json_of(*command)["files"]
    assert file["missed"] == {
        "fc.bias": {"parameter": "bits", "target": 1.5, "reached": 4.0},
        "few": {"parameter": "bits", "target": 1.5, "reached": 128 / 3},
    }
    assert {frame.name for frame in gcodec.iter_frames(target.read_bytes())} == set(weights)
    before = target.read_bytes()
    result = run("encode", source, "-c", "ecsq:bits=1.5,strict=yes", "-o", target, "-f", code=2)
    assert "tensor 'fc.bias': bits=1.5: must be at least" in result.stderr
    assert target.read_bytes() == before


def test_existing_output_needs_force(tmp_path):
    source = dump(tmp_path)
    target = tmp_path / "dump.gcf"
    target.write_bytes(b"mine")
    refused = run("encode", source, "-c", "raw", code=2)
    assert refused.stderr == f"gcodec: {target}: exists already; pass --force to replace it\n"
    assert target.read_bytes() == b"mine"
    run("encode", source, "-c", "raw", "--force")
    run("decode", target, code=2)  # decoding would replace the dump
    advice = "contains frames already: gcodec decode turns them into tensors"
    assert run("encode", target, "-c", "raw", code=2).stderr == f"gcodec: {target}: {advice}\n"
    advice = "must be a file of frames, and named .gcf unless you pass -o OUT"
    assert run("decode", source, code=2).stderr == f"gcodec: {source}: {advice}\n"


@pytest.mark.parametrize(("verb", "kind"), [("inspect", "safetensors"), ("verify", "gcf")])
def test_missing_file_has_the_hint_of_a_similar_name(tmp_path, verb, kind):
    (tmp_path / f"step100.{kind}").touch()
    missing = tmp_path / f"Step100.{kind[:-1]}"
    expected = f"gcodec: {missing}: no such file; did you mean step100.{kind}?\n"
    assert run(verb, missing, code=2).stderr == expected
    run_of_glob = run(verb, tmp_path / f"step10?.{kind[:-1]}", code=2)
    assert run_of_glob.stderr.endswith(": no such file\n")
    assert run(verb, tmp_path / "none" / "a", code=2).stderr.endswith(": no such file\n")


def test_one_output_under_two_paths_is_refused(tmp_path):
    source, other = dump(tmp_path), tmp_path / "dump.npz"
    np.savez(other, w=np.ones(3, np.float32))
    (tmp_path / "below").mkdir()
    detour = tmp_path / "below" / ".." / "dump.npz"
    result = run("encode", source, detour, "-c", "raw", code=2)
    assert "would be written to it" in result.stderr and not (tmp_path / "dump.gcf").exists()


def test_several_inputs(tmp_path):
    one, two = dump(tmp_path, "one.safetensors"), dump(tmp_path, "two.npz")
    out = tmp_path / "new" / "folder"
    run("encode", tmp_path, "-c", "raw", "-o", out)
    assert {p.name for p in out.iterdir()} == {"one.gcf", "two.gcf"}
    single = run("encode", one, two, "-c", "raw", "-o", tmp_path / "all.gcf", code=2)
    assert single.stderr.endswith("all.gcf: OUT must be a directory for 2 files\n")
    stream = run("encode", one, two, "-c", "raw", "-o", "-", code=2)
    assert stream.stderr == "gcodec: -o -: must be the output of one file, not of 2\n"
    run("encode", one, two, "-c", "raw")
    assert (tmp_path / "two.gcf").read_bytes() == (out / "two.gcf").read_bytes()
    # The new .gcf files in the directory are no dumps.
    run("encode", tmp_path, "-c", "raw", "--force")
    assert run("verify", tmp_path).stdout.count(": ok") == 2
    clash = run("encode", DATA, "-c", "raw", "-o", out, code=2)
    assert "would be written to it" in clash.stderr
    assert "there is no .gcf file here" in run("verify", DATA, code=2).stderr


def test_unsupported_dtypes_are_refused(tmp_path):
    source = dump(tmp_path, **{"w": gaussian(3), "fft[0].wave": np.ones(5, np.complex64)})
    refused = run("encode", source, "-c", "raw", code=3)
    assert "tensor 'fft[0].wave' is complex64" in refused.stderr
    advice = refused.stderr.rpartition("-L ")[2].strip().strip("'")
    run("encode", source, "-c", "raw", "-L", advice)
    run("decode", tmp_path / "dump.gcf", "-o", tmp_path / "back.npz")
    assert load(tmp_path / "back.npz").keys() == {"w"}
    assert "no tensor matches" in run("encode", source, "-c", "raw", "-fL", "no*", code=2).stderr


WHOLE = {
    "w": gaussian(4, 5),
    "half": gaussian(7, dtype=np.float16),
    "brain": gaussian(2, 2, dtype=ml_dtypes.bfloat16),
    "double": gaussian(3).astype(np.float64),
    "empty": np.zeros((0, 3), np.float32),
    "bn.num_batches_tracked": np.array(300),
    "mask": np.array([[True], [False]]),
    "no rows": np.zeros(0, np.int32),
} | {name: np.array([0, 1, np.iinfo(name).max, np.iinfo(name).min], name) for name in INTEGERS}


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_whole_dump_round_trips(tmp_path, suffix):
    source = dump(tmp_path, "whole.safetensors", **WHOLE)
    result = run("encode", source, "-c", "raw")
    assert "11 tensors of integers, booleans or 8-bit floats as raw: " in result.stdout
    encoded = source.with_suffix(".gcf")
    run("verify", encoded)
    run("seek", encoded, "--force")
    for verb in ("inspect", "dissect"):
        assert "num_batches_tracked" in run(verb, encoded).stdout
    back = tmp_path / f"back{suffix}"
    run("decode", encoded, "-o", back)
    loaded = load(back)
    assert loaded.keys() == WHOLE.keys()
    for name, tensor in WHOLE.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert loaded[name].tobytes() == tensor.tobytes(), name
    for one in (encoded, back):
        run("compare", source, one, "--max-nmse", "0")


@pytest.mark.parametrize(
    "options",
    [
        ("-c", "ecsq:nmse=0.01"),
        ("-c", "raw:dtype=float16"),
        ("-c", "auto:nmse=0.01"),
        ("-p", "{}"),
        ("-c", "sign", "--nonfinite", "zero"),
    ],
    ids=str,
)
def test_integers_are_stored_as_raw_by_every_codec(tmp_path, options):
    source = dump(tmp_path, **WHOLE)
    rules = tmp_path / "policy.json"
    rules.write_text('{"*": "topk:ratio=0.5"}')
    args = [str(rules) if arg == "{}" else arg for arg in options]
    document = json_of("encode", source, *args)
    kept = [name for name, tensor in WHOLE.items() if tensor.dtype.kind in "iub"]
    assert sorted(document["files"][0]["integers"]) == sorted(kept) and len(kept) == 11
    assert document["files"][0]["tensors"] == len(WHOLE)
    data = source.with_suffix(".gcf").read_bytes()
    for frame in gcodec.iter_frames(data):
        tensor = WHOLE[frame.name]
        assert (frame.dtype, frame.shape) == (str(tensor.dtype), tensor.shape)
        if frame.name in kept:
            assert str(frame.codec) == "raw"
            assert frame.decode().tobytes() == tensor.tobytes()
        else:
            assert frame.codec != gcodec.parse("raw") or "auto" in str(args)


def test_stored_torch_state_dict_round_trips(tmp_path):
    source = ROOT / "tests" / "dumps" / "whole_model.pt"
    run("encode", source, "-c", "raw", "-o", tmp_path / "a.gcf")
    run("decode", tmp_path / "a.gcf", "-o", tmp_path / "back.npz")
    tensors, loaded = load(source), load(tmp_path / "back.npz")
    assert loaded.keys() == tensors.keys()
    assert {tensor.dtype.kind for tensor in tensors.values()} == {"f", "i", "u", "b", "V"}
    assert tensors["1.num_batches_tracked"].shape == () and tensors["empty"].shape == (0, 3)
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert loaded[name].tobytes() == tensor.tobytes()


def test_new_torch_state_dict_round_trips(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    model(torch.zeros(2, 1, 5, 5))
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("row_ids", torch.arange(5, dtype=torch.int32))
    model.register_buffer("brain", torch.ones(3).bfloat16())
    state = model.state_dict()
    torch.save(state, tmp_path / "model.pt")
    run("encode", tmp_path / "model.pt", "-c", "ecsq:nmse=0.001")
    run("decode", tmp_path / "model.gcf", "-o", tmp_path / "back.safetensors")
    from safetensors.torch import load_file

    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == state.keys() and int(state["1.num_batches_tracked"]) == 1
    for name, tensor in state.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        if not tensor.dtype.is_floating_point:
            assert torch.equal(back[name], tensor)
    model.load_state_dict(back)


def test_nonfinite_option(tmp_path):
    x = gaussian(5)
    x[3] = np.nan
    source = dump(tmp_path, x=x)
    refused = run("encode", source, "-c", "raw", code=1)
    assert "tensor 'x' contains 1 NaN or Inf, the first at flat index 3" in refused.stderr
    assert list(tmp_path.iterdir()) == [source]
    for policy in ("zero", "propagate"):
        target = tmp_path / f"{policy}.gcf"
        run("encode", source, "-c", "raw", "--nonfinite", policy, "-o", target)
        decoded = gcodec.decode(target.read_bytes())
        assert np.array_equal(decoded[3], 0 if policy == "zero" else np.nan, equal_nan=True)
    beyond = dump(tmp_path, "beyond.npz", x=np.array([0, 1e300]))
    assert "flat index 1" in run("encode", beyond, "-c", "raw", code=1).stderr


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_codec_is_chosen_for_the_values_in_which_zeros_replace_nan(tmp_path, dtype):
    x = gaussian(60, 50, dtype=dtype)
    x[3, 4], x[5, 6] = np.nan, np.inf
    source, target = dump(tmp_path, "nan.npz", x=x), tmp_path / "zero.gcf"
    run("encode", source, "-c", "auto:nmse=0.02", "--nonfinite", "zero", "-o", target)
    finite = np.nan_to_num(x, nan=0, posinf=0)
    seed = derive_seed(0, name="x")
    codec = gcodec.choose(finite, max_nmse=0.02, seed=seed)
    assert target.read_bytes() == gcodec.encode(finite, codec, seed=seed, name="x")
    wide = finite.astype(np.float64)
    error = wide - gcodec.decode(target.read_bytes())
    assert 0 < np.sum(error**2) <= 0.02 * np.sum(wide**2)
    words = ["-c", "auto:nmse=0.02", "--nonfinite", "propagate"]
    refused = run("encode", dump(tmp_path, "finite.npz", x=finite), *words, code=2)
    allowed = "must be raise or zero when gcodec chooses the codec"
    assert refused.stderr.endswith(f"tensor 'x': nonfinite='propagate': {allowed}\n")


@pytest.mark.parametrize("spec", ["nope", "raw:x=1", "mxnet-2bit:threshold=-1", "raw:"])
def test_invalid_specs_are_usage_errors(tmp_path, spec):
    assert run("encode", dump(tmp_path), "-c", spec, code=2).stderr.startswith("gcodec: ")
    run("inspect", tmp_path, "-c", spec, code=2)


# --- decode


def test_unnamed_frames_are_numbered(tmp_path):
    x = gaussian(3)
    named = gcodec.encode(x, "raw", name="w")
    path = frames_file(tmp_path / "a.gcf", gcodec.encode(x, "raw"), named, gcodec.encode(x, "raw"))
    run("decode", path)
    assert load(tmp_path / "a.safetensors").keys() == {"tensor0", "w", "tensor1"}


def test_duplicate_names_are_refused(tmp_path):
    frame = gcodec.encode(gaussian(3), "raw", name="w\x1b")
    path = frames_file(tmp_path / "a.gcf", frame, frame)
    assert r"two frames are named 'w\x1b'" in run("decode", path, code=3).stderr
    clash = gcodec.encode(gaussian(3), "raw", name="tensor0")
    run("decode", frames_file(path, clash, gcodec.encode(gaussian(3), "raw")), code=3)
    reserved = gcodec.encode(gaussian(3), "raw", name="__metadata__")
    run("decode", frames_file(path, reserved), code=3)
    assert list(tmp_path.iterdir()) == [path]


OUTSIDE = ["../../x", "a/../../x", "/etc/x", "//host/x", "C:x", "C:/x", "c:\\x", "..\\x", "\\x"]
OUTSIDE += ["a\\..\\..\\x", ".. /x", "a/.../x", "..", "\\\\host\\share\\x"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_outside_the_archive_are_refused(tmp_path, name):
    path = frames_file(tmp_path / "a.gcf", gcodec.encode(gaussian(3), "raw", name=name))
    refused = run("decode", path, "-o", tmp_path / "a.npz", code=3)
    assert "must be a path within the archive" in refused.stderr
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(gcodec.ParameterError, match="name of a tensor"):
        write_dump(tmp_path / "b.npz", [(name, gaussian(3))])
    # In this format names are keys, and never paths.
    run("decode", path, "-o", tmp_path / "a.safetensors")
    assert load(tmp_path / "a.safetensors").keys() == {name}


def test_names_inside_the_archive_are_accepted(tmp_path):
    names = [
        "layer.0/w",
        "a\\b",
        "..x",
        "x..",
        "a..b",
        "w:0",
        "layer/bias:0",
        ".",
        "/".join("abc"),
    ]
    names.remove("w:0")  # a drive, to Windows
    tensors = {name: gaussian(3) for name in names}
    frames = (gcodec.encode(x, "raw", name=name) for name, x in tensors.items())
    path = frames_file(tmp_path / "a.gcf", *frames)
    run("decode", path, "-o", tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").keys() == tensors.keys()


def test_decode_reads_stdin(tmp_path):
    frame = gcodec.encode(gaussian(3), "raw", name="w")
    target = tmp_path / "a.npz"
    run("decode", "-", "-o", target, input=frame)
    assert load(target)["w"].tobytes() == gaussian(3).tobytes()
    assert "pass -o OUT" in run("decode", "-", input=frame, code=2).stderr


def test_decode_refuses_invalid_file_names(tmp_path):
    path = frames_file(tmp_path / "a.gcf", gcodec.encode(gaussian(3), "raw"))
    assert ".safetensors or .npz" in run("decode", path, "-o", tmp_path / "a.pt", code=2).stderr
    assert "no such file" in run("decode", tmp_path / "b.gcf", code=2).stderr
    assert "is a directory" in run("decode", tmp_path, code=2).stderr
    document = json_of("decode", path)
    assert (document["schema"], document["values"]) == ("gcodec.decode/1", 3)


@pytest.mark.parametrize("name", ["../m.safetensors", "a:b.safetensors", ".m.safetensors", ""])
def test_invalid_names_of_original_files_are_damage(tmp_path, name):
    frame = gcodec.encode(np.zeros(9, np.uint8), "raw", name=f"\\file:{name}")
    path, target = frames_file(tmp_path / "a.gcf", frame), tmp_path / "b.safetensors"
    for call in (("decode", path), ("apply", path, tmp_path / "old.safetensors")):
        assert "a frame names the file" in run(*call, "-o", target, code=1).stderr
        assert json.loads(run(*call, "-o", target, "--json", code=1).stdout)["errors"]
        assert not target.exists()
    assert run("decode", path, "-o", tmp_path / "b.npz").stdout  # has no original files


# --- verify, and damaged files


def test_verify_detects_flipped_bytes_and_truncation(tmp_path):
    good = gcodec.encode(gaussian(9), "mxnet-2bit", name="w")
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        frames_file(tmp_path / f"flip{at:03}.gcf", good, bytes(bad))
        if at:
            frames_file(tmp_path / f"cut{at:03}.gcf", good, good[:at])
    frames_file(tmp_path / "empty.gcf")
    frames_file(tmp_path / "good.gcf", good, good)
    result = run("verify", "--json", tmp_path, code=3)  # 3: a version from the future
    document = json.loads(result.stdout)
    verdicts = {Path(file["file"]).name: file["ok"] for file in document["files"]}
    assert [name for name, ok in verdicts.items() if ok] == ["good.gcf"]
    assert len(document["errors"]) == len(verdicts) - 1
    for error in document["errors"]:
        if "empty" not in error["file"]:
            assert len(good) <= error["offset"] <= 2 * len(good)
            assert "frame 1" in error["message"]


def test_damage_is_reported_with_its_offset(tmp_path):
    good = gcodec.encode(gaussian(9), "raw", name="w")
    bad = bytearray(good)
    bad[-6] ^= 1
    path = frames_file(tmp_path / "a.gcf", good, bytes(bad))
    message = "frame 1: the payload's checksum is wrong"
    place = f"(at byte {2 * len(good) - 4})"
    for args in (["verify"], ["decode"]):
        result = run(*args, path, code=1)
        assert result.stderr == f"gcodec: {path}: {message} {place}\n"
        assert result.stdout == ""
    assert "2 frames" in run("inspect", path).stdout  # inspect reads only headers
    bad[10] ^= 1  # in its name
    frames_file(path, good, bytes(bad))
    message = f"frame 1: the header's checksum is wrong (at byte {len(good) + 15})"
    assert run("inspect", path, code=1).stderr == f"gcodec: {path}: {message}\n"
    assert list(tmp_path.iterdir()) == [path]


def test_invalid_payload_is_reported_with_its_offset(tmp_path):
    codec = gcodec.parse("mxnet-2bit")
    payload = codec.encode(gaussian(9))
    data = payload.data.copy()
    data[0] = 0b01000000  # an invalid code
    forged = payload._replace(data=data)
    frame = gcodec.Frame(codec, "float32", (9,), forged, "w").to_bytes()
    good = gcodec.encode(gaussian(3), "raw")
    path = frames_file(tmp_path / "a.gcf", good, frame)
    result = run("verify", path, code=1)
    start = len(good) + frame.index(data.tobytes())
    assert (
        f"frame 1 'w': a field of two bits holds the invalid code 01 (at byte {start})"
        in result.stderr
    )
    assert "the invalid code 01" in run("decode", path, code=1).stderr


def test_limits_are_enforced(tmp_path):
    frame = gcodec.encode(gaussian(100), "raw")
    path = frames_file(tmp_path / "a.gcf", frame)
    for verb in ("verify", "decode", "inspect"):
        refused = run(verb, path, "--max-elems", "99", code=4)
        assert "to allow it, pass --max-elems 100" in refused.stderr
        refused = run(verb, path, "--max-bytes", "399", code=4)
        assert "to allow it, pass --max-bytes 400" in refused.stderr
    run("inspect", dump(tmp_path), "--max-elems", "19", code=4)
    run("encode", dump(tmp_path, "b.npz"), "-c", "raw", "--max-elems", "19", code=4)


# --- standard streams, and files of unusual names


def test_lossless_file_comes_back_from_stdin(tmp_path):
    source, encoded, back = dump(tmp_path), tmp_path / "a.gcf", tmp_path / "back.safetensors"
    source.write_bytes(source.read_bytes().replace(b'"w"', b'"w" '))
    header = int.from_bytes(source.read_bytes()[:8], "little") + 1
    source.write_bytes(header.to_bytes(8, "little") + source.read_bytes()[8:])
    run("encode", source, "-c", "lossless", "-o", encoded)
    run("decode", "-", "-o", back, input=encoded.read_bytes())
    assert back.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("args", [["inspect"], ["verify"], ["encode", "-c", "raw", "-o", "x.gcf"]])
def test_stdin_must_be_the_only_input(args):
    refused = run(*args, "-", EXAMPLE, code=2, input=b"")
    assert refused.stderr == "gcodec: -: stdin must be the only input\n"


def test_dash_in_a_folder_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = dump(tmp_path)
    assert (
        f"{source} -> {tmp_path / '-'}   "
        in run("encode", source, "-c", "raw", "-o", "./-").stdout
    )
    assert "1 frame   20 values" in run("verify", "./-", input=b"").stdout


@pytest.mark.parametrize(("inside", "source"), [("", "."), ("logs", "..")])
def test_output_is_named_after_the_current_folder(tmp_path, monkeypatch, inside, source):
    folder = tmp_path / "step-300"
    shutil.copytree(ROOT / "tests" / "dumps" / "sharded", folder)
    (folder / "logs").mkdir()
    monkeypatch.chdir(folder / inside)
    run("encode", source, "-c", "raw")
    run("verify", tmp_path / "step-300.gcf")
    run("encode", source, "-c", "raw", "-o", f"{tmp_path}/out/")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step-300.gcf"]
    assert run("inspect", source).stdout.startswith("step-300   distcp   ")


def test_suggested_commands_run(tmp_path, monkeypatch):
    """Names with leading dashes are no options, and from stdin no name of an output follows."""
    monkeypatch.chdir(tmp_path)
    source = dump(tmp_path, "-dash.safetensors", w=gaussian(40, 50))
    run("encode", "-c", "raw", "--", source.name)
    for name in (source.name, "-dash.gcf"):
        advice = run("inspect", "--", name).stderr.rpartition("next: gcodec ")[2]
        run(*shlex.split(advice))
    data = source.read_bytes()
    advice = run("inspect", "-", "-c", "raw", input=data).stderr.rpartition("next: gcodec ")[2]
    run(*shlex.split(advice), input=data)
    assert (tmp_path / "OUT.gcf").is_file()


@pytest.mark.parametrize("form", ["--json", "--jsonl", "--csv", "--markdown"])
def test_dump_on_stdin_in_each_form(tmp_path, form):
    """A form is printed when the copy of stdin is gone already."""
    data = dump(tmp_path, w=gaussian(40, 50)).read_bytes()
    printed = run("inspect", "-", form, input=data).stdout
    assert "40x50" in printed or json.loads(printed)
    if form == "--json":
        assert json.loads(printed)["files"][0]["bytes"] == len(data)


def test_failed_files_make_no_lines_of_csv(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK")
    assert run("inspect", tmp_path / "a.npz", "--csv", code=3).stdout == ""


@pytest.mark.parametrize("args", [["bench", "--rounds", "1"], ["advise", "--step-time", "1ms"]])
def test_damaged_source_is_named(tmp_path, args):
    path = tmp_path / "a.npz"
    path.write_bytes(b"no archive")
    assert run(*args, path, code=3).stderr.startswith(f"gcodec: {path}: ")
    write_dump(path, [("i", np.arange(3))])
    assert run(*args, path, code=2).stderr.startswith(f"gcodec: {path}: ")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy", ".pt"])
def test_empty_dump(tmp_path, suffix):
    path = tmp_path / f"dump{suffix}"
    path.touch()
    assert (
        run("inspect", path, code=3).stderr == f"gcodec: {path}: the file is empty (at byte 0)\n"
    )


def test_file_without_tensors_is_not_encoded(tmp_path):
    path = tmp_path / "dump.safetensors"
    write_dump(path, [])
    refused = run("encode", path, "-c", "raw", code=3)
    assert refused.stderr == f"gcodec: {path}: the file contains no tensors\n"
    assert list(tmp_path.iterdir()) == [path]


def test_short_text_is_no_array(tmp_path):
    path = tmp_path / "dump.npy"
    path.write_text("text")
    assert "'dump.npy' is not in NumPy's .npy format" in run("inspect", path, code=3).stderr


def test_float64_beyond_float32(tmp_path):
    path = dump(tmp_path, "dump.npz", w=np.array([1, 1e300]))
    refused = run("encode", path, "-c", "sign", "-o", tmp_path / "x.gcf", code=1)
    assert "contains 1 NaN or Inf as float32, the first at flat index 1" in refused.stderr
    assert refused.stderr.endswith("replaces them by 0, and lossless keeps them\n")
