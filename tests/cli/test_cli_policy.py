"""`gcodec encode --policy`: the codec of each tensor, and invalid policies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import json_of, run
from example_files import DUMP as EXAMPLE

import gcodec
from gcodec.feedback import derive_seed
from gcodec.tensorfiles.dumps import open_dump, write_dump

RULES = {
    "rules": [
        {"name": ["*.bias", "*.bn?.*"], "codec": "raw"},
        {"max_bytes": 4096, "codec": "raw:dtype=bfloat16"},
        {"ndim": 4, "codec": "mxnet-2bit:threshold=auto"},
        {"name": "fc.*", "codec": "mxnet-1bit"},
    ]
}


@pytest.fixture
def dump(tmp_path):
    rng = np.random.default_rng(1)
    shapes = {"a.bias": (9,), "a.weight": (4, 4), "b[0]\x1b": (2,)}
    path = tmp_path / "dump.npz"
    write_dump(path, ((k, rng.standard_normal(s).astype(np.float32)) for k, s in shapes.items()))
    return path


def write(folder, source):
    path = folder / "policy.json"
    path.write_text(source if isinstance(source, str) else json.dumps(source), "utf-8")
    return path


def test_bytes_match_the_library(tmp_path):
    policy = gcodec.Policy(RULES)
    target = tmp_path / "out.gcf"
    run("encode", EXAMPLE, "-p", write(tmp_path, RULES), "-o", target, "--seed", "7")
    used = set()
    expected = b""
    with open_dump(EXAMPLE) as opened:
        for entry in opened.entries:
            x = opened.load(entry)
            codec = policy.codec(entry.name, x.shape, x.dtype)
            used.add(codec.name)
            seed = derive_seed(7, name=entry.name)
            expected += gcodec.encode(x, codec, seed=seed, name=entry.name)
    assert target.read_bytes() == expected
    assert len(used) > 1
    run("verify", target)
    run("decode", target, "-o", tmp_path / "back.npz")
    frames = json_of("inspect", target)["files"][0]["frames"]
    specs = [str(frame.codec) for frame in gcodec.iter_frames(expected)]
    assert [frame["codec"] for frame in frames] == specs


def test_single_rule_equals_its_codec(tmp_path, dump):
    for name, options in (
        ("a", ["-c", "mxnet-2bit"]),
        ("b", ["-p", write(tmp_path, {"*": "mxnet-2bit"})]),
    ):
        run("encode", dump, *options, "-o", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_summary_and_json(tmp_path, dump):
    source = {"*.bias": "raw", "*": "mxnet-2bit:threshold=auto"}
    call = ["encode", dump, "--force", "--policy", write(tmp_path, source)]
    assert run(*call).stdout.endswith("x   1 raw, 2 mxnet-2bit:threshold=auto\n")
    assert run(*call, "-q").output == ""
    document = json_of(*call)
    assert document["schema"] == "gcodec.encode/1"
    assert document["codec"] is None
    assert document["policy"] == gcodec.Policy(source).to_dict()
    assert document["files"][0]["codecs"] == {"raw": 1, "mxnet-2bit:threshold=auto": 2}
    document = json_of("encode", dump, "-f", "-c", "raw")
    assert (document["codec"], document["policy"]) == ("raw", None)
    assert document["files"][0]["codecs"] == {"raw": 3}
    assert "raw" not in run("encode", dump, "-f", "-c", "raw").stdout


def test_policy_from_stdin(dump):
    run("encode", dump, "-p", "-", input='{"*": "raw"}')
    assert dump.with_suffix(".gcf").is_file()


def test_unmatched_tensor_writes_nothing(tmp_path, dump):
    policy = write(tmp_path, {"a.*": "raw"})
    before = sorted(tmp_path.iterdir())
    refused = run("encode", dump, "-p", policy, "-o", tmp_path / "new" / "a.gcf", code=2)
    assert refused.stderr.startswith(
        f"gcodec: {dump}: policy: no rule matches a tensor with name 'b[0]\\x1b', ndim 1 and"
    )
    assert sorted(tmp_path.iterdir()) == before
    run("encode", dump, "-p", policy, "-L", "a.*")
    assert run("verify", dump.with_suffix(".gcf")).stdout.count("2 frames") == 1


def test_files_after_an_unmatched_one_are_encoded(tmp_path, dump):
    other = tmp_path / "z.npz"
    write_dump(other, [("a.w", np.ones(3, np.float32))])
    run("encode", dump, other, "-p", write(tmp_path, {"a.*": "raw"}), code=2)
    assert other.with_suffix(".gcf").is_file() and not dump.with_suffix(".gcf").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('{"*": "raw"', "must be JSON: "),
        ('{"*": "raw", "*": "raw"}', "policy['*']='raw': must be given once"),
        ('[{"codec": "raw", "ndim": true}]', "policy.rules[0].ndim=True: must be an integer from"),
        ('{"*": "nope"}', "policy['*']: codec='nope': must be one of raw, "),
        ("[" * 100_000, "nested"),
        (" " * (1 << 20) + "[]", "must be at most 1048576 bytes"),
    ],
)
def test_invalid_policies(tmp_path, dump, source, message):
    policy = write(tmp_path, source)
    refused = run("encode", dump, "-p", policy, code=2)
    assert refused.stderr.startswith(f"gcodec: {policy}: policy")
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not dump.with_suffix(".gcf").exists()


def test_codec_and_policy_exclude_each_other(tmp_path, dump):
    policy = write(tmp_path, {"*": "raw"})
    for options in ([], ["-c", "raw", "-p", policy], ["-c", "", "-p", policy]):
        refused = run("encode", dump, *options, code=2)
        assert "Pass either --codec SPEC or --policy FILE.json." in refused.stderr
    assert "missing.json" in run("encode", dump, "-p", tmp_path / "missing.json", code=2).stderr
    run("encode", dump, "-p", tmp_path, code=2)
    policy.write_bytes(b"\xff")
    assert "must be UTF-8" in run("encode", dump, "-p", policy, code=2).stderr
    assert not dump.with_suffix(".gcf").exists()
