"""`gcodec doctor`: it finds what is wrong, and says so by its exit code."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import gcodec
from gcodec.cli import host, self_test
from gcodec.cli.main import cli
from gcodec.cli.verbs import doctor
from gcodec.codecs.raw import Raw
from gcodec.codecs.terngrad import TernGrad
from gcodec.runtime import jit, store


def run(*args, code=0):
    result = CliRunner().invoke(cli, ["doctor", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def checks(*args, code=0):
    document = json.loads(run("--json", *args, code=code).stdout)
    assert (document["schema"], document["exit_code"]) == ("gcodec.doctor/1", code)
    return {check["name"]: check for check in document["checks"]}


def test_all_is_well():
    found = checks()
    assert all(check["ok"] for check in found.values())
    assert {f"codec {name}" for name in gcodec.codecs()} <= found.keys()
    assert {*host.NEEDED, "Python", "threads", "kernel cache", "GPU"} <= found.keys()
    assert found["numpy"]["found"] == np.__version__
    assert gcodec.__version__ in found["gcodec"]["found"]
    assert sys.executable in found["Python"]["found"]


def test_text_and_quiet():
    text = run("--no-self-test").stdout
    assert text.splitlines()[-1] == "all is well"
    assert "codec raw" not in text
    assert run("--no-self-test", "-q").output == ""


def test_a_cache_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "file"))
    result = run("--no-self-test", "-q", code=1)
    assert result.stdout.startswith("FAILED  kernel cache")
    assert "set GCODEC_CACHE_DIR" in result.stdout


def test_a_cache_that_others_could_exchange(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path / "open" / "cache"))
    cache = checks("--no-self-test", code=1)["kernel cache"]
    assert f"Other users can write to {tmp_path / 'open'}" in cache["found"]
    assert "set GCODEC_CACHE_DIR" in cache["advice"]


def test_a_cache_that_cannot_be_written_will_do_if_it_is_complete(tmp_path, monkeypatch):
    monkeypatch.setenv("GCODEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store.Directory, "is_writable", lambda self: False)
    cache = checks("--no-self-test", code=1)["kernel cache"]
    assert "Nothing can be written to" in cache["found"]
    monkeypatch.setattr(jit.Kernel, "cached", True)
    assert checks("--no-self-test")["kernel cache"]["ok"]


def test_a_disabled_compiler(monkeypatch):
    """Each codec would fail in the same way, so none is tried."""
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    found = checks(code=1)
    assert [name for name, check in found.items() if not check["ok"]] == ["compiler"]
    assert "NUMBA_DISABLE_JIT" in found["compiler"]["found"]


def test_a_wrong_number_of_threads(monkeypatch):
    monkeypatch.setenv("GCODEC_NUM_THREADS", "many")
    assert not checks("--no-self-test", code=1)["threads"]["ok"]


def test_what_is_missing_or_old(monkeypatch):
    monkeypatch.setattr(host, "least_versions", lambda: {"numpy": "999.1", "scipy": "1.0"})
    monkeypatch.setattr(host, "NEEDED", ("numpy", "scipy", "no-such-distribution"))
    found = checks("--no-self-test", code=1)
    assert not found["numpy"]["ok"] and found["numpy"]["advice"] == "pip install 'numpy>=999.1'"
    assert found["scipy"]["ok"]
    assert found["no-such-distribution"]["found"] == "is not installed"


def test_a_codec_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(self_test, "failures", lambda codec, x: ["it is odd"] * (codec.id == 1))
    found = checks(code=1)
    assert found["codec raw"]["found"] == "it is odd"
    assert [name for name, check in found.items() if not check["ok"]] == ["codec raw"]


@pytest.mark.parametrize(
    ("version", "least", "older"),
    [
        ("1.26.4", "1.26", False),
        ("1.9", "1.26", True),
        ("2.0.0rc1", "1.26", False),
        ("0.61", "0.61.2", False),
        ("3", "2.9", False),
    ],
)
def test_versions(version, least, older):
    assert host.is_older(version, least) is older


# --- what the self-test finds


class Halved(Raw):
    """Sends half of each value, and says that it sends all."""

    def _quantize(self, values, seed, prior):
        return super()._quantize(values / 2, seed, prior)

    def _encode(self, values, seed, prior):
        return super()._encode(values / 2, seed, prior)


class Unlucky(Raw):
    """Fails."""

    def _encode(self, values, seed, prior):
        raise gcodec.ParameterError("no")


class Restless(Raw):
    """Never sends the same twice."""

    def _encode(self, values, seed, prior):
        noise = np.random.default_rng().normal(size=values.size).astype(np.float32)
        return super()._encode(values + noise * values, seed, prior)


class Biased(TernGrad):
    """Says that it is unbiased, but rounds with one seed for ever."""

    def _with_scale(self, values, scale, seed):
        return super()._with_scale(values, scale, 1)


class Longer(Raw):
    """Takes more bytes than it says."""

    def max_payload_nbits(self, n):
        return 8


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Halved(), "above 1 - contraction"),
        (Unlucky(), "ParameterError: no"),
        (Restless(), "two calls give two frames"),
        (Biased(clip=0.0), "biased: "),
        (Longer(), "longer than max_encoded_nbytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lies_are_found(codec, message):
    assert any(message in one for one in self_test.failures(codec, self_test.gradient()))


def test_settings_of_laws_keep_their_word():
    x = self_test.gradient()
    for spec in ("terngrad:clip=0", "qsgd:bucket=64", "randomk:ratio=0.1,unbiased=yes"):
        codec = gcodec.parse(spec)
        assert codec.unbiased
        assert self_test.failures(codec, x) == []


def test_checks_say_what_to_do():
    for check in doctor._versions():
        assert check.ok or check.advice
