"""Hooks of ``mkdocs build``: pages made of the files in the repository's root, and of the command.

README.md, CHANGELOG.md, CONTRIBUTING.md and SECURITY.md are also pages of the site. Their links to
pages of ``docs/`` stay links; a link to a file that the site lacks becomes its text. The page of
the command shows the help of every verb, so it cannot be older than the command. Where a docstring
states only the type of a result, mkdocstrings would write a dash without a description. A long
spec or test name in a table would squeeze the prose beside it, so it may break after a separator.
Names of documented objects, such as ``gcodec.parse``, link to the reference.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_EXAMPLE = re.compile(r"^```wire (.+)$", re.MULTILINE)
_CODE_IN_CELL = re.compile(r"(?<=<code>)[^<]{20,}(?=</code>(?:(?!<t[dr]).)*</td>)")
_BREAK_AFTER = re.compile(r"(?<=[a-z0-9][,:_])(?=[a-z0-9])")
_NO_DESCRIPTION = re.compile(r"–\s*<div class=\"doc-md-description\">\s*</div>")
_NAME = re.compile(r"<(a|h[1-6]|pre)\b.*?</\1>|<code>(gcodec(?:\.\w+)+)</code>", re.DOTALL)
HELP = "<!-- help of every verb -->"


def relinked(text: str, folder: str) -> str:
    """Return Markdown with links that suit the site.

    Parameters
    ----------
    text : str
        Markdown of a file in the repository.
    folder : str
        Folder of that file, relative to the repository: ``""`` or ``"docs"``.
    """

    def target(link: re.Match[str]) -> str:
        image, label, path, anchor = link[1], link[2], link[3], link[4] or ""
        if not path or "://" in path:
            return link[0]
        place = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        if place in ROOT_PAGES:
            return f"{image}[{label}]({ROOT_PAGES[place]}{anchor})"
        if place.startswith("docs/"):
            return f"{image}[{label}]({place.removeprefix('docs/')}{anchor})"
        return label

    fences = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if number % 2 else _LINK.sub(target, part) for number, part in enumerate(fences)
    )


@functools.cache
def reference() -> dict[str, str]:
    """Return the page of each object of the reference, by the name of the object."""
    docs = ROOT / "docs"
    return {
        name: page.relative_to(docs).as_posix()
        for page in sorted((docs / "api").glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    }


def documented(name: str) -> str | None:
    """Return the object of the reference that has a name, or whose class has the named member."""
    if name in reference():
        return name
    owner = name.rpartition(".")[0]
    is_class = owner.rpartition(".")[2][:1].isupper()
    return owner if is_class and owner in reference() else None


def help_of_every_verb() -> str:
    """Return a section for each verb, with its help."""
    from gcodec.cli.main import cli

    settings = {**cli.context_settings, "terminal_width": 96}
    context = click.Context(cli, info_name="gcodec", **settings)
    parts = [f"```text\n{cli.get_help(context)}\n```\n"]
    for name in cli.list_commands(context):
        verb = cli.get_command(context, name)
        assert verb is not None
        inner = click.Context(verb, context, info_name=name, **settings)
        parts.append(f"## gcodec {name}\n\n```text\n{verb.get_help(inner)}\n```\n")
    return "\n".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of files in the root."""
    from mkdocs.structure.files import File

    for source, page in ROOT_PAGES.items():
        text = relinked((ROOT / source).read_text("utf-8"), "")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write the help into its page, give executed examples a title, and mend links."""
    if page.file.src_uri in ROOT_PAGES.values():
        return markdown
    if page.file.src_uri == "command.md":
        markdown = markdown.replace(HELP, help_of_every_verb())
    markdown = _EXAMPLE.sub(r'```text title="\1"', markdown)
    return relinked(markdown, "docs") if "/" not in page.file.src_uri else markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Link names, drop the dash after a type without a description, let code in tables break."""

    def linked(match: re.Match[str]) -> str:
        # A link, a heading or a listing, which the first alternative matches, stays as it is.
        target = documented(match[2]) if match[2] else None
        if target is None:
            return match[0]
        url = files.get_file_from_path(reference()[target]).url_relative_to(page.file)
        return f'<a href="{url}#{target}">{match[0]}</a>'

    html = _NAME.sub(linked, html)
    html = _CODE_IN_CELL.sub(lambda code: _BREAK_AFTER.sub("<wbr>", code[0]), html)
    return _NO_DESCRIPTION.sub("", html)
