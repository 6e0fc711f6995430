"""What a shell can complete: files, codec specs, names of tensors.

`gcodec.cli.shells` has the scripts. What is heavy is imported when a key is pressed for it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from gcodec.codec import Codec

FILE = click.Path(readable=False)
"""A file or a directory, of which the verb says itself what is wrong with it."""

_MOST_NAMES = 500
_MOST_FRAME_BYTES = 1 << 26  # names of frames are found by reading what is between them


def complete_spec(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the name of a codec, of a parameter, or a word that it may be."""
    from click.shell_completion import CompletionItem

    from gcodec.codec import registered

    importlib.import_module("gcodec.codecs")  # which registers them
    known = registered()
    name, colon, text = incomplete.partition(":")
    if colon:
        return list(_parameters(known[name], text)) if name in known else []
    found = []
    for cls in known.values():
        if cls.name.startswith(name):
            summary = (cls.__doc__ or "").partition("\n")[0]
            found.append(CompletionItem(cls.name, help=summary))
            if cls.declared():
                found.append(CompletionItem(f"{cls.name}:", help="with parameters"))
    return found


def _parameters(cls: type[Codec], text: str) -> Iterator[CompletionItem[str]]:
    """Complete what is behind the colon of a spec."""
    from click.shell_completion import CompletionItem

    *before, last = text.split(",")
    prefix = f"{cls.name}:" + "".join(f"{part}," for part in before)
    taken = {part.partition("=")[0] for part in before}
    key, equals, value = last.partition("=")
    for declared in cls.declared():
        if not equals:
            if declared.name.startswith(key) and declared.name not in taken:
                yield CompletionItem(f"{prefix}{declared.name}=", help=declared.doc)
        elif declared.name == key:
            words = getattr(declared.kind, "words", ())
            for word in dict.fromkeys((declared.kind.text(declared.default), *words)):
                if word.startswith(value):
                    yield CompletionItem(f"{prefix}{key}={word}")


def complete_layer(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete names of the tensors in the files on the line; with ``!`` for all but them."""
    import glob

    from click.shell_completion import CompletionItem

    mark = "!" if incomplete.startswith("!") else ""
    found: dict[str, None] = {}
    for path in _files(ctx):
        for name in _names(path):
            escaped = mark + glob.escape(name)
            if escaped.startswith(incomplete) and name.isprintable():
                found[escaped] = None
            if len(found) == _MOST_NAMES:
                break
    return [CompletionItem(name) for name in found]


def _files(ctx: click.Context) -> list[Path]:
    """Return the files among the arguments so far."""
    from pathlib import Path

    # Where the option that is completed has no value yet, click leaves all arguments in `args`.
    texts = list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument):
            value = ctx.params.get(param.name or "") or ()
            texts += (value,) if isinstance(value, str) else value
    return [Path(text) for text in texts if os.path.isfile(text)]


def _names(path: Path) -> Iterator[str]:
    """List the tensors in a file; none where it cannot be read."""
    from gcodec.cli.inputs import is_frames
    from gcodec.errors import GcodecError
    from gcodec.tensorfiles.dumps import open_dump

    try:
        if not is_frames(path):
            with open_dump(path) as dump:
                yield from (entry.name for entry in dump.entries)
        elif path.stat().st_size <= _MOST_FRAME_BYTES:
            from gcodec import Limits, iter_frames

            most = Limits(1 << 62, 1 << 62)  # nothing is decoded
            for frame in iter_frames(path.read_bytes(), limits=most):
                if frame.name is not None:
                    yield frame.name
    except (GcodecError, OSError, ValueError):
        return
