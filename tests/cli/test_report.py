"""`gcodec inspect --report`: one page, without scripts, with escaped texts."""

from __future__ import annotations

import hashlib
import html
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from safetensors.numpy import save_file

import gcodec
from gcodec.analysis import diagrams, fits, timing
from gcodec.analysis.advice import MeasuredCodec
from gcodec.analysis.candidates import all_settings
from gcodec.analysis.measure import measure_tensors
from gcodec.analysis.settings import Settings
from gcodec.cli.render import figures
from gcodec.cli.render import report as page
from gcodec.cli.render.report import escaped
from gcodec.tensorfiles.dumps import open_dump, write_dump

ROOT = Path(__file__).parents[2]
EVIL = {
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>': '"><img src=x onerror=alert(1)>',
    "\x1b[31m\n\u202e [red]": r"\x1b[31m\n\u202e [red]",
    'w style="color:red" <b>': 'w style="color:red" <b>',
    r"#010101 1.23456 $\frac{a}{b}$": r"#010101 1.23456 $\frac{a}{b}$",
}


class Page(HTMLParser):
    """The tags and the texts of a page; tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module", autouse=True)
def short_measurements():
    """Measure few tensors, and time each codec with a single call: no test depends on more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagrams, "_MAX_TENSORS", 2)
        patch.setattr(timing, "_MIN_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return a dump with names of all kinds, and the page about it."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("report")
    path, target = folder / "evil.safetensors", folder / "page.html"
    random = np.random.default_rng(0)
    tensors = [(name, random.laplace(size=(12, 20)).astype(np.float32)) for name in EVIL]
    tensors[-1][1][0, 1] = np.nan
    tensors += [("few", np.ones(3, np.float32)), ("empty", np.zeros(0, np.float32))]
    tensors += [("zeros", np.zeros(50, np.float32)), ("steps", np.array(3))]
    save_file(dict(tensors), path, metadata={"model": "</style><script>2</script>\x1b[2J"})
    options = ["--max-nmse", "0.1000002", "--seed", "5", "--each", "--sort", "name"]
    run("inspect", path, *options, "--report", target, "-q")
    return path, target


def test_page_is_well_formed_and_has_no_scripts(report):
    text = report[1].read_text("utf-8")
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert {"svg", "details", "summary", "table", "dl", "figure"} <= names
    assert not names & {"script", "img", "link", "iframe", "object", "image", "foreignobject"}
    for _, attributes in page.tags:
        assert not any(key.startswith("on") or key == "src" for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    for used in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert used in ids
    assert "http" not in re.sub(r'http-equiv="[^"]*"|xmlns[^ >]*', "", text)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert set(re.findall(r"var\((--\w+)\)", text)) <= set(re.findall(r"(--\w+):", text))


def test_wide_table_scrolls_sideways_and_says_so(report):
    text = report[1].read_text("utf-8")
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    attributes = page.tags[tags.index("table") - 1][1]
    assert attributes["class"] == "scroll" and attributes["tabindex"] == "0"
    (style,) = re.findall(r"^\.scroll \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert "overflow-x: auto" in style
    narrow = text[text.index("@media (max-width") : text.index("</style>")]
    assert "The table scrolls sideways" in narrow


def test_names_are_shown_escaped(report):
    text = report[1].read_text("utf-8")
    texts = Page(text).texts
    for name, shown in EVIL.items():
        # In the table, above the tensor's own diagrams and, if it fits, in that of bits.
        expected = 3 if len(shown) <= 26 else 2
        assert [part.strip() for part in texts].count(shown) == expected, name
    assert "\x1b" not in text and "\u202e" not in text
    assert r"</style><script>2</script>\x1b[2J" in "".join(texts)
    assert text.count("<style>") == 1
    assert any(r"! 1 NaN or Inf: #010101 1.23456 $\frac{a}{b}$[1]" in part for part in texts)


def test_page_contains_its_command(report):
    path, target = report
    text = html.unescape(target.read_text("utf-8"))
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text
    options = "--max-nmse 0.1000002 --sample 65536 --seed 5 --each --sort name"
    assert f"gcodec inspect {path} {options} --report {target}" in text
    assert "largest of" not in text, "the diagrams show all gradients, and the others have no bits"
    for name in ("numpy", "numba", "scipy", "matplotlib", "Python", "seed", "processor"):
        assert f"<dt>{name}</dt><dd>" in text
    assert f"<dt>gcodec</dt><dd>{gcodec.__version__}</dd>" in text
    for codec in (name for name, cls in gcodec.codecs().items() if not cls.needs_feedback):
        if codec not in ("mxnet-1bit", "lossless"):  # whose errors are outside of the diagram
            assert f">{codec}</text>" in text
    for word in ("Shannon bound", "front", "header", "level", "Gbit/s", "Pareto"):
        assert word in text


def test_page_of_selected_blocks_and_codecs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path, target = tmp_path / "blocks.safetensors", tmp_path / "page.html"
    random = np.random.default_rng(0)
    tensors = {f"blk.{i}.w": random.normal(size=(4, 9)).astype(np.float32) for i in range(2)}
    write_dump(path, [*tensors.items(), ("other", np.ones(5, np.float32))])
    options = ["--max-bits", "9", "-c", "sign", "-c", "minmax", "-L", "blk*", "--full"]
    run("inspect", path, *options, "--report", target, "-q")
    text = html.unescape(target.read_text("utf-8"))
    command = f"--max-bits 9.0 -c sign -c minmax -L 'blk*' --full --seed 0 --report {target}"
    assert f"gcodec inspect {path} {command}" in text
    assert "<summary>blk.0.w of blk.*.w <span>4x9 float32, rms " in text
    monkeypatch.setattr(page, "_MAX_ROWS", 1)
    run("inspect", path, *options, "--each", "--report", target, "-q")
    assert "The 1 largest of 2 rows." in target.read_text("utf-8")


def test_report_refuses_frames_and_other_suffixes(tmp_path):
    path = tmp_path / "a.safetensors"
    write_dump(path, [("w", np.ones(9, np.float32))])
    run("encode", path, "-c", "raw")
    assert "must name a file that ends in .html" in (
        run("inspect", path, "--report", path, code=2).stderr
    )
    frames, target = path.with_suffix(".gcf"), tmp_path / "r.html"
    assert "contains frames" in run("inspect", frames, "--report", target, code=2).stderr
    assert not target.exists()


def test_missing_matplotlib_is_reported_with_advice(tmp_path, monkeypatch):
    path, target = tmp_path / "a.safetensors", tmp_path / "r.html"
    write_dump(path, [("w", np.ones(9, np.float32))])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    advice = "diagrams need matplotlib: pip install 'gcodec[report]'"
    with pytest.raises(ImportError, match=re.escape(advice)):
        figures.require_matplotlib()
    result = run("inspect", path, "--report", target, code=2)
    assert result.stderr == f"gcodec: --report: {advice}\n" and not target.exists()


def test_folder_without_permission_is_refused_before_measuring(tmp_path, monkeypatch):
    path, target = tmp_path / "a.safetensors", tmp_path / "reports" / "r.html"
    write_dump(path, [("w", np.ones(9, np.float32))])
    monkeypatch.setattr("os.access", lambda folder, mode: folder != target.parent)
    result = run("inspect", path, "--report", target, code=3)
    assert result.stdout == "" and f"{target}: Permission denied" in result.stderr


def test_picture_and_fitted_shapes():
    x = np.random.default_rng(0).laplace(size=20_000) * 1e-3
    picture = fits.Picture.of(np.concatenate([x, np.zeros(5), [np.nan, 1.0]]))
    assert (picture.values, picture.zeros) == (20_001, 5)
    width = picture.edges[1] - picture.edges[0]
    inside = picture.density.sum() * width
    assert inside == pytest.approx(1 - picture.outside / picture.values)
    assert (np.diff(picture.quantiles) >= 0).all() and picture.quantiles[-1] > 16
    assert fits.Picture.of(np.zeros(100)) is None
    shape = fits.Shape(1.0, 1.0)
    grid = np.linspace(-30, 30, 60_001)
    below = np.cumsum(shape.density(grid)) * (grid[1] - grid[0])
    shares = np.array([0.001, 0.3, 0.5, 0.9])
    assert np.interp(shares, below, grid) == pytest.approx(shape.quantiles(shares), abs=2e-3)


def test_diagrams_without_data_are_empty():
    pytest.importorskip("matplotlib")
    assert figures.rate_distortion([], []).startswith("<svg ")
    assert figures.link_speeds([("raw", 0.0)]).count("never") == 1
    assert figures.stacked_bits([], []).endswith("</svg>")
    assert escaped('<a href="x">\t') == r"&lt;a href=&quot;x&quot;&gt;\t"


def test_legend_of_all_codecs_lies_below_the_axis():
    pytest.importorskip("matplotlib")
    points = [MeasuredCodec(cls(), 3.0, 0.01) for cls in gcodec.codecs().values()]
    svg = figures.rate_distortion(points, [(1.0, 1.0)])
    label, *entries = (
        float(re.search(rf'<text [^>]* y="([\d.]+)">{word}<', svg)[1])
        for word in ("bits per value", "front", *gcodec.codecs(), "Shannon bound")
    )
    assert min(entries) > label + 12


def test_wide_characters_get_wide_labels():
    pytest.importorskip("matplotlib")
    ascii_row, wide_row = (figures.link_speeds([(name, 1.0)]) for name in ("abcd", "漢字"))
    area = re.compile(r'<rect x="[\d.]+" .*? width="[\d.]+"')  # it begins after the names
    assert area.findall(ascii_row) == area.findall(wide_row) != []


def test_example_page_is_small_and_current():
    page = ROOT / "examples" / "resnet8_digits_step0300.html"
    assert page.stat().st_size < 400_000
    text = page.read_text("utf-8")
    Page(text)
    source = ROOT / "examples" / "resnet8_digits_step0300.safetensors"
    assert hashlib.sha256(source.read_bytes()).hexdigest() in text
    (command,) = re.findall(r"<dt>command</dt><dd>(.*?)</dd>", text)
    assert html.unescape(command) in (ROOT / "examples" / "README.md").read_text("utf-8")


def test_points_are_those_of_codecs_that_accept_all_tensors(tmp_path):
    path = tmp_path / "dump.safetensors"
    tensors = {"w": np.linspace(-1, 1, 90, dtype=np.float32), "v": np.full(99, 3e38, np.float32)}
    write_dump(path, tensors.items())
    with open_dump(path) as dump:
        groups = [tensor.group for tensor in measure_tensors(dump, Settings())]
        points, samples = diagrams.measure_rates(dump, groups, Settings())
    assert {sample.name for sample in samples} == {*tensors}
    for point in points:
        for x in tensors.values():
            gcodec.encode(x, point.codec)
    with pytest.raises(gcodec.ParameterError, match="x: "):
        gcodec.encode(tensors["v"], "randomk:unbiased=yes")
    assert "randomk:unbiased=yes" in map(str, all_settings())
