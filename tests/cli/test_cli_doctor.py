"""`gcodec doctor`: it detects problems, and reports them by its exit code."""

from __future__ import annotations

import re
import sys
from functools import partial

import command_line
import numpy as np
import pytest
from example_files import ROOT

import gcodec
from gcodec.analysis import host, self_test
from gcodec.cli.verbs import doctor
from gcodec.codecs.raw import Raw
from gcodec.codecs.terngrad import TernGrad
from gcodec.runtime import kernel_cache, store

run = partial(command_line.run, "doctor")


def checks(*args, code=0):
    document = command_line.json_of("doctor", *args, code=code)
    return {check["name"]: check for check in document["checks"]}


def test_installation_passes_all_checks():
    results = checks()
    assert all(check["ok"] for check in results.values())
    assert {f"codec {name}" for name in gcodec.codecs()} <= results.keys()
    assert {*host.NEEDED, "Python", "threads", "kernel cache", "GPU"} <= results.keys()
    assert results["numpy"]["found"] == np.__version__
    assert gcodec.__version__ in results["gcodec"]["found"]
    assert sys.executable in results["Python"]["found"]


def test_frameworks_of_all_extras_are_shown():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = project.partition("[project.optional-dependencies]")[2].partition("\ntest = ")[0]
    needed = set(re.findall(r'^\w+ = \["([\w-]+)', extras, re.MULTILINE))
    assert {"torch", "zarr", "nvflare"} <= needed
    assert needed <= {name for names in host.OPTIONAL.values() for name in names}


def test_text_and_quiet_output():
    text = run("--no-self-test").stdout
    assert text.splitlines()[-1] == "all checks passed"
    assert "codec raw" not in text
    assert "needs Python" not in text  # advice is for those who fail
    assert run("--no-self-test", "-q").output == ""


def test_unusable_cache_fails(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "file"))
    result = run("--no-self-test", "-q", code=1)
    assert result.stdout.startswith("FAILED  kernel cache")
    assert "set GCODEC_CACHE_DIR" in result.stdout


def test_cache_writable_by_others_fails(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "open" / "cache"))
    cache = checks("--no-self-test", code=1)["kernel cache"]
    assert f"Other users can write to {tmp_path / 'open'}" in cache["found"]
    assert "set GCODEC_CACHE_DIR" in cache["advice"]


def test_read_only_cache_passes_if_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store.Directory, "is_writable", lambda self: False)
    cache = checks("--no-self-test", code=1)["kernel cache"]
    assert "Nothing can be written to" in cache["found"]
    monkeypatch.setattr(kernel_cache, "missing", lambda kernels: [])
    assert checks("--no-self-test")["kernel cache"]["ok"]


def test_disabled_compiler(monkeypatch):
    """Every codec would fail in the same way, so the self-test is skipped."""
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    results = checks(code=1)
    assert [name for name, check in results.items() if not check["ok"]] == ["compiler"]
    assert "NUMBA_DISABLE_JIT" in results["compiler"]["found"]


@pytest.mark.parametrize(
    ("variable", "check"),
    [("GCODEC_NUM_THREADS", "threads"), ("GCODEC_KEPT_MIB", "reused memory")],
)
def test_invalid_number_fails(variable, check, monkeypatch):
    monkeypatch.setenv(variable, "many")
    assert not checks("--no-self-test", code=1)[check]["ok"]


def test_invalid_target_fails(monkeypatch):
    monkeypatch.setenv("GCODEC_TARGET", "abacus")
    results = checks(code=1)
    assert not results["target"]["ok"] and "'abacus'" in results["target"]["found"]
    assert "GPU" in results and "codec raw" not in results


def test_missing_and_outdated_distributions_fail(monkeypatch):
    monkeypatch.setattr(host, "minimum_versions", lambda: {"numpy": "999.1", "scipy": "1.0"})
    monkeypatch.setattr(host, "NEEDED", ("numpy", "scipy", "no-such-distribution"))
    results = checks("--no-self-test", code=1)
    assert (
        not results["numpy"]["ok"] and results["numpy"]["advice"] == "pip install 'numpy>=999.1'"
    )
    assert results["scipy"]["ok"]
    assert results["no-such-distribution"]["found"] == "is not installed"


def test_failing_codec_is_named(monkeypatch):
    monkeypatch.setattr(self_test, "failures", lambda codec, x: ["it is odd"] * (codec.id == 1))
    results = checks(code=1)
    assert results["codec raw"]["found"] == "it is odd"
    assert [name for name, check in results.items() if not check["ok"]] == ["codec raw"]


@pytest.mark.parametrize(
    ("version", "minimum", "older"),
    [
        ("1.26.4", "1.26", False),
        ("1.9", "1.26", True),
        ("2.0.0rc1", "1.26", False),
        ("0.61", "0.61.2", False),
        ("3", "2.9", False),
    ],
)
def test_version_comparison(version, minimum, older):
    assert host.is_older(version, minimum) is older


# --- self-test


class Halved(Raw):
    """A codec that halves the values, but claims to be lossless."""

    def _quantize(self, values, seed, prior):
        return super()._quantize(values / 2, seed, prior)

    def _encode(self, values, seed, prior):
        return super()._encode(values / 2, seed, prior)


class Unlucky(Raw):
    """A codec that refuses all tensors."""

    def _encode(self, values, seed, prior):
        raise gcodec.ParameterError("no")


class Restless(Raw):
    """A codec whose frames are not reproducible."""

    def _encode(self, values, seed, prior):
        noise = np.random.default_rng().normal(size=values.size).astype(np.float32)
        return super()._encode(values + noise * values, seed, prior)


class Biased(TernGrad):
    """A codec that claims to be unbiased, but always rounds with the same seed."""

    def _with_scale(self, values, scale, seed):
        return super()._with_scale(values, scale, 1)


class Longer(Raw):
    """A codec whose frames exceed the announced size."""

    def max_payload_nbits(self, n):
        return 8


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Halved(), "exceeds 1 - contraction"),
        (Unlucky(), "ParameterError: no"),
        (Restless(), "two calls return different frames"),
        (Biased(clip=0.0), "biased: "),
        (Longer(), "longer than max_encoded_nbytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_self_test_detects_broken_promises(codec, message):
    assert any(message in one for one in self_test.failures(codec, self_test.gradient()))


def test_unbiased_settings_pass_the_self_test():
    x = self_test.gradient()
    for spec in ("terngrad:clip=0", "qsgd:bucket=64", "randomk:ratio=0.1,unbiased=yes"):
        codec = gcodec.parse(spec)
        assert codec.unbiased
        assert self_test.failures(codec, x) == []


def test_failed_checks_have_advice():
    for check in doctor._versions():
        assert check.ok or check.advice
