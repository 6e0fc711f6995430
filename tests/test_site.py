"""Test the documentation site: all public names, with examples, and the help of every verb."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import gcodec
from tools import site_pages

ROOT = Path(__file__).parents[1]
ONES = np.ones(3, np.float32)
REFERENCE = {
    name
    for page in (ROOT / "docs" / "api").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
}
PAGES = [ROOT / page for page in site_pages.ROOT_PAGES] + sorted((ROOT / "docs").rglob("*.md"))
MODULES = {  # by the library that each needs
    "gcodec": None,
    "gcodec.advisor": None,
    "gcodec.entropy": None,
    "gcodec.interop": None,
    "gcodec.training": None,
    "gcodec.flower": "flwr",
    "gcodec.jax": "jax",
    "gcodec.numcodecs": "numcodecs",
    "gcodec.nvflare": "nvflare",
    "gcodec.torch": "torch",
    "gcodec.zarr": "zarr",
}


def public_names(module: str, library: str | None) -> list[tuple[str, Any]]:
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed")
    loaded = importlib.import_module(module)
    own = [name for name, value in vars(loaded).items() if inspect.getmodule(value) is loaded]
    names = getattr(loaded, "__all__", [name for name in own if not name.startswith("_")])
    assert names
    return [(f"{module}.{name}", getattr(loaded, name)) for name in names]


each_module = pytest.mark.parametrize(("module", "library"), MODULES.items(), ids=MODULES)


@each_module
def test_reference_has_every_public_name(module: str, library: str | None) -> None:
    # Packages have pages of their own.
    missing = {name for name, _ in public_names(module, library)} - REFERENCE - {*MODULES}
    assert not missing


@each_module
def test_every_public_name_has_an_example(module: str, library: str | None) -> None:
    documented = [
        (name, value)
        for name, value in public_names(module, library)
        if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)
    ]
    assert [name for name, value in documented if ">>> " not in (value.__doc__ or "")] == []


def test_tables_of_the_reference_list_the_objects_below_them() -> None:
    page = (ROOT / "docs" / "api" / "gcodec.md").read_text("utf-8")
    _, *groups = page.split("\n## ")
    for group in groups:
        rows = re.findall(r"^\| \[`(\w+)`\]\(#gcodec\.\1\) \|", group, re.MULTILINE)
        assert rows == re.findall(r"^::: gcodec\.(\w+)$", group, re.MULTILINE) != []


def test_tree_of_errors_is_that_of_the_classes() -> None:
    page = (ROOT / "docs" / "api" / "gcodec.md").read_text("utf-8")
    tree = re.search(r"^GcodecError\n(?:[ │├└].*\n)+", page, re.MULTILINE)
    assert tree
    parents: dict[int, type] = {}  # the latest class of each depth
    for indent, name in re.findall(r"^([ │├└─]*)(\w+)", tree[0], re.MULTILINE):
        parents[len(indent) // 4] = own = getattr(gcodec, name)
        assert not indent or own.__base__ is parents[len(indent) // 4 - 1]


UNREADABLE = {
    "a list": lambda: gcodec.encode([1.0], "sign"),
    "complex numbers": lambda: gcodec.encode(np.ones(3, complex), "sign"),
    "a masked array": lambda: gcodec.encode(np.ma.masked_array(ONES), "sign"),
    "text": lambda: gcodec.decode("text"),  # type: ignore[arg-type]
    "no path": lambda: gcodec.load_file(5.0),  # type: ignore[arg-type]
    "no tree": lambda: gcodec.save_file(5, "x.gcf", "sign"),
}
INVALID = {
    "seed": lambda: gcodec.encode(ONES, "sign", seed="a"),  # type: ignore[arg-type]
    "codec": lambda: gcodec.encode(ONES, 5),  # type: ignore[arg-type]
    "NaN": lambda: gcodec.encode(ONES * np.float32("nan"), "sign"),
    "grads": lambda: gcodec.Feedback("sign").compress_many(5),  # type: ignore[arg-type]
    "out": lambda: gcodec.decode(gcodec.encode(ONES, "sign"), out=np.ones(3)),
    "base": lambda: gcodec.encode_patch(ONES, np.ones(3)),
}


@pytest.mark.parametrize("call", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_data_is_a_type_error(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize("call", INVALID.values(), ids=INVALID)
def test_other_invalid_arguments_are_parameter_errors(call: Callable[[], object]) -> None:
    with pytest.raises(gcodec.ParameterError):
        call()


def test_page_of_the_command_has_every_verb() -> None:
    from gcodec.cli.main import cli

    text = site_pages.help_of_every_verb()
    verbs = cli.list_commands(click.Context(cli))
    assert re.findall(r"^## gcodec (\w+)$", text, re.MULTILINE) == verbs
    assert all(f"Usage: gcodec {verb} " in text for verb in verbs)
    page = (ROOT / "docs" / "command.md").read_text("utf-8")
    assert site_pages.HELP in page
    purposes = re.findall(r"^\| \[`(\w+)`\]\(#gcodec-\1\) \| (.+) \|$", page, re.MULTILINE)
    assert [verb for verb, _ in purposes] == verbs
    assert all(f"{verb:9}{purpose}\n" in text for verb, purpose in purposes)


def test_links_suit_the_site() -> None:
    text = "[a](docs/ecsq.md#x) ![b](docs/img/b.svg) [c](CHANGELOG.md) [d](LICENSE) [e](https://e)"
    assert site_pages.relinked(text, "") == (
        "[a](ecsq.md#x) ![b](img/b.svg) [c](changelog.md) d [e](https://e)"
    )
    inner = "[f](../README.md) [g](gpu.md#x) [h](#y)\n```python\nx[0](../LICENSE)\n```\n"
    assert site_pages.relinked(inner, "docs") == inner.replace("../README.md", "index.md")


def test_result_without_description_has_no_dash() -> None:
    shown = '<code>Codec</code>\n – \n<div class="doc-md-description">{}</div>'
    kept, empty = shown.format("<p>A codec.</p>"), shown.format("\n ")
    pages = [site_pages.on_page_content(text, None, None, None) for text in (kept, empty)]
    assert pages == [kept, "<code>Codec</code>\n "]


def test_long_code_in_a_table_may_break() -> None:
    spec = "microscale:format=mxfp8e4m3,scale=rceil"
    broken = "microscale:<wbr>format=mxfp8e4m3,<wbr>scale=rceil"
    text = f"<p><code>{spec}</code></p><table><tr><td>{{}}</td><td><code>raw:x=1</code></td></tr>"
    html = text.format(f"The codec <code>{spec}</code> and text")
    expected = text.format(f"The codec <code>{broken}</code> and text")
    assert site_pages.on_page_content(html, None, None, None) == expected


def test_names_link_to_the_reference() -> None:
    class File:
        def get_file_from_path(self, path: str) -> File:
            self.path = path
            return self

        def url_relative_to(self, other: object) -> str:
            return f"../{self.path}"

    class Page:
        file = None

    def shown(html: str) -> str:
        return site_pages.on_page_content(html, Page, None, File())

    for name, anchor in (
        ("gcodec.parse", "gcodec.parse"),
        ("gcodec.Feedback.compress", "gcodec.Feedback"),
    ):
        code = f"<code>{name}</code>"
        assert shown(code) == f'<a href="../api/gcodec.md#{anchor}">{code}</a>'
        for tag in ("a", "h2", "pre"):
            assert shown(f"<{tag} x>{code}</{tag}>") == f"<{tag} x>{code}</{tag}>"
    for name in ("gcodec.codecs.ecsq.quantizer", "gcodec.arrays", "gcodec.encode.x"):
        assert shown(f"<code>{name}</code>") == f"<code>{name}</code>"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lists_suit_the_site(page: Path) -> None:
    """MkDocs nests by four spaces; within a paragraph, it starts no list but continues one."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    numbers: dict[int, int] = {}  # of the latest ordered items, by their indentation
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").splitlines()
        items = [re.match(r"( *)(?:[-*]|(\d+)\.) ", line) for line in lines]
        assert items[:1] != [None] or not any(items), block
        indentations = [len(item[1]) for item in items if item]
        assert all(n % 4 == 0 and n >= indentations[0] for n in indentations), block
        for item in filter(None, items):
            if item[2]:
                assert int(item[2]) in (1, numbers.get(len(item[1]), 0) + 1), block
                numbers[len(item[1])] = int(item[2])


def test_every_page_is_in_the_navigation() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text("utf-8")
    navigation = configuration.partition("\nnav:")[2]
    pages = set(re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE))
    docs = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert pages == docs | {*site_pages.ROOT_PAGES.values()}


def test_links_of_the_package_index_are_absolute() -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    from hatch_build import absolute_links

    readme = absolute_links((ROOT / "README.md").read_text("utf-8"), "https://host/gcodec")
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert "https://host/gcodec/raw/main/docs/img/overview.svg" in targets
    assert "https://host/gcodec/blob/main/CHANGELOG.md" in targets
    assert all(target.startswith("https://") for target in targets)
