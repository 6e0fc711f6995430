"""Policies: the rule that matches, refusals with their paths, and `Feedback` with a policy."""

from __future__ import annotations

import copy
import glob
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies as gs
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import Feedback, ParameterError, Policy
from gcodec.policy import PrefixedPolicy

PAGE = Path(__file__).parent.parent / "docs" / "codecs.md"
RAW, TWO_BIT, ONE_BIT = (gcodec.parse(name) for name in ("raw", "mxnet-2bit", "mxnet-1bit"))
FULL = {
    "rules": [
        {"name": ["*.bias", "*.bn?.*"], "codec": "raw"},
        {"ndim": [4, 2, 2], "min_bytes": 100, "max_bytes": 4096, "codec": {"name": "mxnet-1bit"}},
        {"name": "head.*", "ndim": 0, "codec": gcodec.parse("raw:dtype=float16")},
        {"codec": "mxnet-2bit:threshold=auto"},
    ]
}
CANONICAL = {
    "rules": [
        {"name": ["*.bias", "*.bn?.*"], "codec": "raw"},
        {"ndim": [2, 4], "min_bytes": 100, "max_bytes": 4096, "codec": "mxnet-1bit"},
        {"name": "head.*", "ndim": 0, "codec": "raw:dtype=float16"},
        {"codec": "mxnet-2bit:threshold=auto"},
    ]
}


def chosen(source: Any, name: str | None = "w", shape: Any = (3,), dtype: Any = "float32") -> str:
    return str(Policy(source).codec(name, shape, dtype))


def misses(source: Any, *tensor: Any) -> bool:
    try:
        chosen(source, *tensor)
    except ParameterError as error:
        assert "no rule" in str(error)
        return True
    return False


# --- matching


def test_the_first_match_wins() -> None:
    assert chosen({"*": "raw", "w": "mxnet-2bit"}) == "raw"
    assert chosen({"w": "mxnet-2bit", "*": "raw"}) == "mxnet-2bit"
    assert chosen([{"codec": "raw"}, {"codec": "mxnet-2bit"}]) == "raw"
    assert chosen([{"name": "v", "codec": "raw"}, {"ndim": 1, "codec": "mxnet-2bit"}]) == (
        "mxnet-2bit"
    )
    many = {f"layer{i}": f"mxnet-2bit:threshold={i}" for i in (0.5, 0.3, 0.9, 0.1)}
    assert [rule.codec for rule in Policy(many).rules] == list(map(gcodec.parse, many.values()))


def test_rule_matches_only_if_all_keys_do() -> None:
    rule = [{"name": "a*", "ndim": 2, "min_bytes": 8, "max_bytes": 24, "codec": "raw"}]
    assert not misses(rule, "ab", (2, 3))
    assert misses(rule, "b", (2, 3))
    assert misses(rule, "ab", (6,))
    assert misses(rule, "ab", (1, 1))
    assert misses(rule, "ab", (7, 1))


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)]
)
def test_size_bounds_are_inclusive_in_the_tensors_dtype(dtype: str, itemsize: int) -> None:
    least = [{"min_bytes": 10 * itemsize, "codec": "raw"}]
    most = [{"max_bytes": 10 * itemsize, "codec": "raw"}]
    for n in (0, 9, 10, 11):
        assert misses(least, "w", (n,), dtype) == (n < 10)
        assert misses(most, "w", (n,), dtype) == (n > 10)
    assert misses([{"min_bytes": 10 * itemsize + 1, "codec": "raw"}], "w", (10,), dtype)
    assert misses([{"max_bytes": 10 * itemsize - 1, "codec": "raw"}], "w", (10,), dtype)


def test_small_and_large_bounds() -> None:
    assert not misses([{"min_bytes": 0, "max_bytes": 0, "codec": "raw"}], "w", (0, 3))
    assert misses([{"max_bytes": 0, "codec": "raw"}], "w", ())
    assert not misses([{"min_bytes": 4, "max_bytes": 4, "codec": "raw"}], "w", ())
    assert not misses([{"min_bytes": 2**62, "codec": "raw"}], "w", (2**60,))
    assert misses([{"min_bytes": 2**63 - 1, "codec": "raw"}], "w", (2**60,))


def test_rules_by_number_of_dimensions() -> None:
    for ndim, shape in enumerate([(), (3,), (3, 1), (0, 2, 2), (1,) * 32]):
        ndim = len(shape) if ndim == 4 else ndim
        assert not misses([{"ndim": ndim, "codec": "raw"}], "w", shape)
        assert not misses([{"ndim": [31, ndim], "codec": "raw"}], "w", shape)
        assert misses([{"ndim": (ndim + 1) % 32, "codec": "raw"}], "w", shape)
    assert not misses([{"ndim": 1, "codec": "raw"}], "w", 7)


@pytest.mark.parametrize(
    ("pattern", "matching", "not_matching"),
    [
        (
            "*.bias",
            ["fc.bias", "a.b/c.bias", ".bias"],
            ["bias", "fc.BIAS", "fc.bias2", "fc.bias "],
        ),
        ("layer?.w", ["layer1.w", "layer..w"], ["layer.w", "layer12.w"]),
        ("layer[12].w", ["layer1.w", "layer2.w"], ["layer3.w", "layer[12].w"]),
        ("layer[!12].w", ["layer3.w", "layer!.w"], ["layer1.w"]),
        ("p[[]0]", ["p[0]"], ["p0", "p[[]0]"]),
        ("Größe/*", ["Größe/", "Größe/x\n\x1b[31m\0y"], ["große/x", "Gro\u0308ße/x"]),
        ("*", ["", "\n", "a\nb", "[", "日本"], []),
        ("", [""], ["a", "\n"]),
        ("w", ["w"], ["w\n", "W", " w"]),
        ("[", ["["], ["[["]),
        ("[[:alpha:]]", [":]", "a]"], ["a"]),
        ("[z-a]", [], ["a", "z", "[z-a]"]),
    ],
)
def test_globs(pattern: str, matching: list[str], not_matching: list[str]) -> None:
    for source in ({pattern: "raw"}, [{"name": ["never", pattern], "codec": "raw"}]):
        for name in matching:
            assert not misses(source, name), name
        for name in not_matching:
            assert misses(source, name), name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_escaped_name_matches_only_itself(name: str) -> None:
    source = [{"name": glob.escape(name), "codec": "raw"}]
    assert not misses(source, name)
    assert misses(source, name + "x")


def test_missing_name_matches_like_an_empty_name() -> None:
    for name in (None, ""):
        assert chosen({"?*": "raw", "*": "mxnet-2bit"}, name) == "mxnet-2bit"
        assert chosen([{"name": "", "codec": "raw"}], name) == "raw"
        assert chosen([{"ndim": 1, "codec": "raw"}], name) == "raw"


def test_rules_do_not_see_a_prefix() -> None:
    policy = Policy({"kernel": "raw", "[!a]*": "sign", "*": "topk"})
    prefixed = pickle.loads(pickle.dumps(PrefixedPolicy(policy)))
    for name in ("kernel", "dense/kernel", "a/b", "b/a"):
        expected = policy.codec(name, (8, 4), "float32")
        assert prefixed.codec(f"12/{name}", (8, 4), "float32") == expected


def test_dtypes_of_libraries() -> None:
    least = [{"min_bytes": 6, "codec": "raw"}]
    for dtype in gs.DTYPES.values():
        for spelled in (dtype, dtype.type, np.dtype(dtype).newbyteorder("="), str(dtype)):
            assert misses(least, "w", (1,), spelled) == (dtype.itemsize < 6)
    assert not misses(least, "w", (1,), np.dtype(">f8"))
    for kept in ("int8", np.int64, np.dtype(">u4"), np.dtype(bool), "bool"):
        for source, spec in (({"*": "topk"}, "raw"), ({"*": "lossless"}, "lossless"), ({}, "raw")):
            assert str(chosen(source | {"other": "lossless"}, "w", (1,), kept)) == spec
    for wrong in ("int4", "f4", np.complex64, None, 4):
        with pytest.raises(ParameterError, match=r"^dtype=.* must be one of float32, float16"):
            chosen(least, "w", (1,), wrong)


def test_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    policy = Policy([{"max_bytes": 4, "codec": "raw"}, {"codec": "mxnet-2bit"}])
    for kind, spec in (("bfloat16", "raw"), ("float32", "mxnet-2bit")):
        x = torch.zeros(2, dtype=getattr(torch, kind))
        assert str(policy.codec("w", x.shape, x.dtype)) == spec


def test_no_match_names_the_tensor() -> None:
    source = {"*.bias": "raw"}
    message = r"^policy: no rule matches a tensor with name 'fc\.weight', ndim 2 and 120 bytes;"
    with pytest.raises(ParameterError, match=message):
        chosen(source, "fc.weight", (3, 5), "float64")
    with pytest.raises(ParameterError, match=r"with name None, ndim 0 and 4 bytes;"):
        chosen(source, None, ())
    with pytest.raises(ParameterError, match=r"with name '\\x1b',"):
        chosen(source, "\x1b", ())
    with pytest.raises(ParameterError) as caught:
        chosen(source, "x" * 10_000)
    assert len(str(caught.value)) < 250


def test_impossible_tensors() -> None:
    with pytest.raises(ParameterError, match=r"^name=3: must be a string"):
        chosen({"*": "raw"}, 3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="UTF-8"):
        chosen({"*": "raw"}, "\ud800")
    for shape in ((-1,), (2.0,), "ab"):
        with pytest.raises(ParameterError, match="shape"):
            chosen({"*": "raw"}, "w", shape)


# --- sources and equality


def test_equivalent_sources() -> None:
    short = Policy({"*.bias": "raw", "*": {"name": "mxnet-2bit", "threshold": 0.25}})
    listed = Policy(
        [
            {"codec": RAW, "name": ["*.bias"]},
            {"name": "*", "min_bytes": 0, "codec": "mxnet-2bit:threshold=0.25"},
        ]
    )
    assert short == listed == Policy({"rules": list(listed.to_dict()["rules"])})
    assert hash(short) == hash(listed)
    assert len({short, listed, Policy({"*": "raw"})}) == 2
    assert short != Policy({"*": {"name": "mxnet-2bit", "threshold": 0.25}, "*.bias": "raw"})
    assert short != short.to_dict()
    numbers = [{"ndim": np.int64(2), "min_bytes": np.uint8(7), "codec": "raw"}]
    assert Policy(numbers).to_dict() == {"rules": [{"ndim": 2, "min_bytes": 7, "codec": "raw"}]}
    assert "int64" not in repr(Policy(numbers))


def test_round_trips() -> None:
    policy = Policy(FULL)
    assert policy.to_dict() == CANONICAL
    assert json.loads(policy.to_json()) == CANONICAL
    assert len(policy.to_json().splitlines()) == 6
    for again in (
        Policy(policy.to_dict()),
        Policy.from_json(policy.to_json()),
        Policy.from_json(policy.to_json().encode()),
        Policy.from_json(b"\xef\xbb\xbf" + policy.to_json().encode()),
        eval(repr(policy), {"Policy": Policy}),
        pickle.loads(pickle.dumps(policy)),
        copy.deepcopy(policy),
    ):
        assert again == policy
        assert repr(again) == repr(policy)
        assert again.to_json() == policy.to_json()


def test_policy_is_immutable() -> None:
    source = copy.deepcopy(CANONICAL)
    policy = Policy(source)
    source["rules"][0]["name"].append("*")
    source["rules"].clear()
    policy.to_dict()["rules"].clear()
    assert policy.to_dict() == CANONICAL
    with pytest.raises(AttributeError):
        policy.rules = ()  # type: ignore[misc]


names = st.text(st.sampled_from("ab[]!-^*?.\\&|~#\n:é"), max_size=8)
rules = st.fixed_dictionaries(
    {"codec": gs.codecs()},
    optional={
        "name": st.one_of(names, st.lists(names, min_size=1, max_size=3)),
        "ndim": st.one_of(st.integers(0, 32), st.lists(st.integers(0, 32), min_size=1)),
        "min_bytes": st.integers(0, 50),
        "max_bytes": st.one_of(st.integers(50, 100), st.just(2**63 - 1)),
    },
)


@given(st.lists(rules, min_size=1, max_size=4), names, st.integers(0, 5), st.integers(0, 30))
def test_random_policies_round_trip_and_match(
    source: list[dict[str, Any]], name: str, ndim: int, size: int
) -> None:
    """A policy survives every spelling and returns the codec of the first matching rule."""
    policy = Policy(source)
    assert Policy.from_json(policy.to_json()) == policy
    assert eval(repr(policy), {"Policy": Policy}) == policy
    shape = (size, *[1] * (ndim - 1)) if ndim else ()
    alone = [not misses([rule], name, shape) for rule in source]
    if any(alone):
        assert policy.codec(name, shape, "float32") == source[alone.index(True)]["codec"]
    else:
        assert misses(source, name, shape)


# --- refusals

KEYS = "name, ndim, min_bytes, max_bytes, codec"
WRONG: list[tuple[Any, str]] = [
    ("raw", "policy='raw': must be a mapping of globs to specs, or a list of rules"),
    (None, "policy=None: must be a mapping of globs"),
    (3, "policy=3: must be a mapping of globs"),
    ({}, "policy={}: must be a mapping of globs to specs, or a list of rules; not empty"),
    ([], "policy=[]: must be"),
    ({"rules": []}, "policy=[]: must be"),
    ({"rules": "raw"}, "policy.rules='raw': must be a list of rules"),
    ({"rules": {"*": "raw"}}, "policy.rules={'*': 'raw'}: must be a list of rules"),
    ({"rules": [{"codec": "raw"}], "*": "raw"}, "policy['*']='raw': must be left out; "),
    ({"rules": [], "version": 1}, "policy.version=1: must be left out; the keys are rules"),
    ({3: "raw"}, "policy=3: must be a mapping of globs to specs"),
    ({None: "raw"}, "policy=None: must be"),
    ({"*.b": "nope"}, "policy['*.b']: codec='nope': must be one of raw, "),
    ({"*": "raw", "b": 3}, "policy.b: codec=3: must be a spec, a mapping or a Codec"),
    ({"*": "mxnet-2bit:threshold=x"}, "policy['*']: threshold='x': must be"),
    ({"*": {"name": "raw", "x": 1}}, "policy['*']: x=1: raw has the parameters dtype"),
    ({"*": {"threshold": 1}}, "policy['*']: codec={'threshold': 1}: must be a mapping with a "),
    # The mapping of a codec, and a rule without a list around it.
    ({"name": "mxnet-2bit"}, "policy.name='mxnet-2bit': must be in a rule in a list"),
    ({"codec": "raw"}, "policy.codec='raw': must be in a rule in a list; for a tensor of that "),
    (["raw"], f"policy.rules[0]='raw': must be a mapping with the keys {KEYS}"),
    ([{"codec": "raw"}, None], "policy.rules[1]=None: must be a mapping"),
    ([{}], "policy.rules[0].codec is missing: must be a spec, a mapping or a Codec"),
    ([{"codec": "raw"}, {"name": "*"}], "policy.rules[1].codec is missing"),
    ([{"codec": None}], "policy.rules[0].codec: codec=None: must be"),
    ([{"codec": "raw:"}], "policy.rules[0].codec: spec='raw:': must be"),
    ([{"codec": Policy({"*": "raw"})}], "policy.rules[0].codec: codec=Policy("),
    (
        [{"codec": "raw", "size": 3}],
        f"policy.rules[0].size=3: must be left out; the keys are {KEYS}",
    ),
    ([{"codec": "raw", 3: 4}], "policy.rules[0][3]=4: must be left out"),
    ([{"codec": "raw", "a b": 4}], "policy.rules[0]['a b']=4: must be left out"),
    ([{"codec": "raw", "name": 3}], "policy.rules[0].name=3: must be a glob or a list of globs"),
    ([{"codec": "raw", "name": None}], "policy.rules[0].name=None: must be"),
    ([{"codec": "raw", "name": []}], "policy.rules[0].name=[]: must be"),
    ([{"codec": "raw", "name": ["a", 3]}], "policy.rules[0].name=['a', 3]: must be"),
    ([{"codec": "raw", "name": b"a"}], "policy.rules[0].name=b'a': must be"),
    ([{"codec": "raw", "ndim": 33}], "policy.rules[0].ndim=33: must be an integer from 0 to 32"),
    ([{"codec": "raw", "ndim": -1}], "policy.rules[0].ndim=-1: must be"),
    ([{"codec": "raw", "ndim": True}], "policy.rules[0].ndim=True: must be"),
    ([{"codec": "raw", "ndim": [2, True]}], "policy.rules[0].ndim=True: must be"),
    ([{"codec": "raw", "ndim": 2.0}], "policy.rules[0].ndim=2.0: must be"),
    ([{"codec": "raw", "ndim": "2"}], "policy.rules[0].ndim='2': must be"),
    ([{"codec": "raw", "ndim": None}], "policy.rules[0].ndim=None: must be"),
    ([{"codec": "raw", "ndim": []}], "policy.rules[0].ndim=[]: must be"),
    ([{"codec": "raw", "ndim": [[2]]}], "policy.rules[0].ndim=[2]: must be"),
    ([{"codec": "raw", "ndim": {"a": 2}}], "policy.rules[0].ndim={'a': 2}: must be"),
    ([{"codec": "raw", "min_bytes": -1}], "policy.rules[0].min_bytes=-1: must be an integer from"),
    ([{"codec": "raw", "min_bytes": True}], "policy.rules[0].min_bytes=True: must be"),
    ([{"codec": "raw", "max_bytes": 1e6}], "policy.rules[0].max_bytes=1000000.0: must be"),
    ([{"codec": "raw", "max_bytes": "4 KiB"}], "policy.rules[0].max_bytes='4 KiB': must be"),
    ([{"codec": "raw", "max_bytes": None}], "policy.rules[0].max_bytes=None: must be"),
    (
        [{"codec": "raw", "max_bytes": 2**63}],
        "policy.rules[0].max_bytes=9223372036854775808: must",
    ),
    (
        [{"codec": "raw"}, {"codec": "raw", "min_bytes": 5, "max_bytes": 4}],
        "policy.rules[1].min_bytes=5: must be at most max_bytes=4",
    ),
]


@pytest.mark.parametrize(("source", "message"), WRONG, ids=[message for _, message in WRONG])
def test_invalid_policies_are_refused_with_their_path(source: Any, message: str) -> None:
    with pytest.raises(ParameterError, match="^" + re.escape(message)):
        Policy(source)
    try:
        text = json.dumps(source)
    except TypeError:
        return
    if json.loads(text) == source:  # all keys are strings
        with pytest.raises(ParameterError, match="^" + re.escape(message)):
            Policy.from_json(text)


WRONG_JSON: list[tuple[Any, str]] = [
    ("", "policy='': must be JSON: Expecting value at line 1, column 1"),
    ('{"*": "raw",\n "a": }', "at line 2, column 7"),
    ("{'*': 'raw'}", "line 1, column 2"),
    ('{"*": "raw"} x', "Extra data at line 1, column 14"),
    ('{"*": "raw"} // all', "Extra data"),
    ('\ufeff{"*": "raw"}', "must be JSON: Unexpected UTF-8 BOM"),
    (b"\xff\xfe", "must be UTF-8: byte 0 is not"),
    ('"raw"', "policy='raw': must be a mapping of globs"),
    ("null", "policy=None: must be"),
    ("NaN", "policy=nan: must be a finite number"),
    (
        '{"rules": [{"codec": "raw", "max_bytes": Infinity}]}',
        "policy.rules[0].max_bytes=inf: must",
    ),
    ('[{"codec": "raw", "max_bytes": -1e999}]', "policy.rules[0].max_bytes=-inf: must be"),
    ('[{"codec": "raw", "ndim": [2, 1e999]}]', "policy.rules[0].ndim[1]=inf: must be"),
    ('{"*": {"name": "mxnet-2bit", "threshold": NaN}}', "policy['*'].threshold=nan: must be"),
    ('[{"codec": "raw", "max_bytes": %s}]' % ("9" * 25), "policy.rules[0].max_bytes=1e+25: must"),
    ('[{"codec": "raw", "max_bytes": %s}]' % ("9" * 9999), "policy.rules[0].max_bytes=inf: must"),
    ('{"*": "raw", "*": "mxnet-2bit"}', "policy['*']='mxnet-2bit': must be given once"),
    ('[{"codec": "raw"}, {"codec": "raw", "codec": "raw"}]', "policy.rules[1].codec='raw': must"),
    ('{"rules": [], "rules": []}', "policy.rules=[]: must be given once"),
    ('{"*": {"name": "raw", "name": "raw"}}', "policy['*'].name='raw': must be given once"),
    (None, "policy=None: must be JSON text"),
    ({"*": "raw"}, "policy={'*': 'raw'}: must be JSON text; Policy(...) takes mappings and lists"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_JSON, ids=[m for _, m in WRONG_JSON])
def test_invalid_json_is_refused_with_its_path(text: Any, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Policy.from_json(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("policy")
    assert len(str(caught.value)) < 400


def test_numbers_of_codecs_in_json() -> None:
    text = '[{"codec": {"name": "ecsq", "step": 0.5}}]'
    assert str(Policy.from_json(text).codec("w", (3,), "float32")) == "ecsq:step=0.5"
    with pytest.raises(ParameterError, match="must be a finite number"):
        Policy.from_json(text.replace("0.5", "NaN"))


@pytest.mark.parametrize("depth", [10, 200, 500, 900, 1000, 3000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"rules":[', '[{"codec":', '[{"ndim":[', ""])
def test_deep_nesting_is_refused(opening: str, depth: int) -> None:
    closing = {"[": "]", "{": "}"}
    closed = "".join(closing[c] for c in reversed(opening) if c in closing)
    bombs = [opening * depth, opening * depth + "0" + closed * depth]
    bombs.append('[{"codec": "raw", "ndim": ' + "[" * depth + "2" + "]" * depth + "}]")
    for text in bombs:
        with pytest.raises(ParameterError, match=r"^policy"):
            Policy.from_json(text)


def test_deep_nesting_of_python_objects_is_refused() -> None:
    deep: Any = 2
    for _ in range(20_000):
        deep = [deep]
    for source in (deep, {"*": deep}, [{"codec": "raw", "ndim": deep}], [{"codec": deep}]):
        with pytest.raises(ParameterError, match=r"^policy"):
            Policy(source)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ParameterError, match=r"^policy\.rules\[0\]="):
        Policy(loop)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        names,
        st.sampled_from(["raw", "mxnet-2bit:threshold=auto", "raw:dtype=float16", "nope"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(names, st.sampled_from(["rules", *KEYS.split(", ")])), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


def check_text(text: Any) -> None:
    try:
        policy = Policy.from_json(text)
    except ParameterError as error:
        assert str(error).startswith("policy")
        return
    assert Policy.from_json(policy.to_json()) == policy
    misses(policy.to_dict(), "a.b", (3, 2))


@given(json_values)
def test_random_json_is_a_policy_or_refused(value: Any) -> None:
    check_text(json.dumps(value))


@given(st.one_of(st.text(), st.binary()))
def test_random_text_is_a_policy_or_refused(text: Any) -> None:
    check_text(text)


@given(st.data())
def test_damaged_policy_is_a_policy_or_refused(data: st.DataObject) -> None:
    text = json.dumps(CANONICAL)
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.text('{}[]":,0179-.eE\\ntrfalsu*', max_size=4))
    check_text(text[:at] + put + text[at + data.draw(st.integers(0, 6)) :])


# --- Feedback

MIXED = Policy(
    [
        {"name": "*.bias", "codec": "raw"},
        {"ndim": 2, "min_bytes": 200, "codec": "mxnet-2bit:threshold=0.25"},
        {"max_bytes": 40, "codec": "raw:dtype=bfloat16"},
        {"name": "?*", "codec": "mxnet-1bit"},
    ]
)
TENSORS = {
    "fc.bias": ((300,), "raw"),
    "fc.weight": ((10, 30), "mxnet-2bit:threshold=0.25"),
    "scale": ((), "raw:dtype=bfloat16"),
    "small[0]": ((2, 5), "raw:dtype=bfloat16"),
    "conv": ((4, 4, 3, 3), "mxnet-1bit"),
}


def gradient(name: str, step: int) -> np.ndarray:
    shape, _ = TENSORS[name]
    rng = np.random.default_rng([step, *name.encode()])
    return np.asarray(rng.standard_normal(shape), np.float32)


def test_feedback_uses_the_codec_of_each_tensor() -> None:
    mixed = Feedback(MIXED, seed=3, rank=1, decay=0.9)
    assert mixed.codec is MIXED
    direct = {
        name: Feedback(spec, seed=3, rank=1, decay=0.9) for name, (_, spec) in TENSORS.items()
    }
    for step in range(4):
        for name, (shape, spec) in TENSORS.items():
            frame = mixed.compress(name, gradient(name, step))
            assert frame == direct[name].compress(name, gradient(name, step))
            assert str(gcodec.Frame.from_bytes(frame).codec) == spec
            assert gcodec.decode(frame).shape == shape
    for name, feedback in direct.items():
        assert gs.same_bits(mixed.residual(name), feedback.residual(name))


def test_feedback_resumes_after_a_restart() -> None:
    one, other = Feedback(MIXED), Feedback(Policy.from_json(MIXED.to_json()))
    for name in TENSORS:
        one.compress(name, gradient(name, 0))
    other.load_state_dict(one.state_dict())
    for name in TENSORS:
        assert one.compress(name, gradient(name, 1)) == other.compress(name, gradient(name, 1))


def test_other_dtype_may_change_the_codec_but_keeps_the_residual() -> None:
    feedback = Feedback(Policy([{"max_bytes": 100, "codec": "raw"}, {"codec": "mxnet-2bit"}]))
    grad = np.full(50, 0.375, np.float32)
    feedback.compress("w", grad)
    assert np.all(feedback.residual("w") == 0.375)
    frame = gcodec.Frame.from_bytes(feedback.compress("w", grad.astype(np.float16)))
    assert (str(frame.codec), frame.dtype) == ("raw", "float16")
    assert np.all(frame.decode() == 0.75)
    assert not feedback.residual("w").any()
    assert str(gcodec.Frame.from_bytes(feedback.compress("w", grad)).codec) == "mxnet-2bit"


def test_prior_goes_only_to_the_codec_that_produced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any, Any]] = []  # codec, prior, symbols

    def spied(original: Any) -> Any:
        def spy(self: Any, tensor: Any, update: Any, seed: int, prior: Any) -> Any:
            symbols = original(self, tensor, update, seed, prior)
            seen.append((self, prior, symbols))
            return symbols

        return spy

    for cls in (type(RAW), type(TWO_BIT)):
        monkeypatch.setattr(cls, "_quantize_residual", spied(cls._quantize_residual))
        monkeypatch.setattr(cls, "uses_prior", True)
    same = "mxnet-2bit:threshold=4"
    rules = [
        {"max_bytes": 100, "codec": "raw"},
        {"max_bytes": 200, "codec": same},
        {"codec": same},
    ]
    feedback = Feedback(Policy(rules))
    grad = np.zeros(50, np.float32)
    for dtype in ("float16", "float16", "float32", "float64", "float16"):
        feedback.compress("w", grad.astype(dtype))
    priors = [prior for _, prior, _ in seen]
    assert [prior is None for prior in priors] == [True, False, True, False, True]
    assert priors[1] is seen[0][2]
    assert priors[3] is seen[2][2]


def test_prior_outlives_a_step_with_a_codec_that_uses_none() -> None:
    feedback = Feedback(Policy([{"max_bytes": 100, "codec": "raw"}, {"codec": "powersgd:rank=1"}]))
    grad = np.linspace(-1, 1, 50, dtype=np.float32).reshape(5, 10)
    feedback.compress("w", grad)
    prior = feedback.state_dict()["prior:w"].tobytes()
    feedback.compress("w", grad.astype(np.float16))
    assert feedback.state_dict()["prior:w"].tobytes() == prior


def test_no_match_changes_nothing() -> None:
    feedback, twin = Feedback(MIXED), Feedback(MIXED)
    for one in (feedback, twin):
        one.compress("conv", gradient("conv", 0))
    before = feedback.state_dict()
    message = r"no rule matches a tensor with name '', ndim 1 and 400 bytes"
    with pytest.raises(ParameterError, match=message):
        feedback.compress("", np.ones(100, np.float32))
    after = feedback.state_dict()
    assert after.keys() == before.keys() == {"residual:conv", "step:conv"}
    assert all(np.array_equal(after[key], before[key]) for key in before)
    assert feedback.compress("conv", gradient("conv", 1)) == twin.compress(
        "conv", gradient("conv", 1)
    )


def test_feedback_takes_a_mapping_as_a_codec() -> None:
    assert Feedback({"name": "mxnet-2bit", "threshold": 0.25}).codec == gcodec.parse(
        "mxnet-2bit:threshold=0.25"
    )
    for wrong in ({"*": "raw"}, [{"codec": "raw"}]):
        with pytest.raises(ParameterError, match=r"^codec="):
            Feedback(wrong)


# --- docs/codecs.md


def test_policies_of_the_page() -> None:
    (block,) = re.findall(
        r"^```json\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    policy = Policy.from_json(block)
    assert policy.to_json() == block.strip()
