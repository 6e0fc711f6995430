"""What every verb is: a command whose help has examples that run, and tells its exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

EXIT_CODES = {
    0: "all is well",
    1: "a check failed: a file is damaged, or an error is above its bound",
    2: "the command was called wrongly, or names what is not there",
    3: "a file cannot be read or written, or holds what this release does not know",
    4: "a limit was hit: of --max-elems, --max-bytes, or of memory",
    5: "a file was refused because reading it would run code",
}
"""What the codes of `gcodec.cli.outcome` mean, whatever the verb."""


class Verb(click.Command):
    """A command of ``gcodec``.

    Its help is built like a manual page: usage, what it does, options, examples, exit status.

    Parameters
    ----------
    *args, **attributes
        Of `click.Command`.
    examples : sequence of (str, str)
        What one may want, and the command for it, a line of a shell without pipes. Tests run
        all of them where there are the files of `tests/example_files.py`; none may fail.
    exits : mapping of int to str, optional
        What exit codes but 0 and 2 mean, for verbs that read no files; default: `EXIT_CODES`.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]],
        exits: Mapping[int, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        common = {code: EXIT_CODES[code] for code in (0, 2)}
        self.exits = EXIT_CODES if exits is None else dict(sorted({**common, **exits}.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections behind the options."""
        with formatter.section("Examples"):
            write_examples(formatter, self.examples)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), what) for code, what in self.exits.items()])
        super().format_epilog(ctx, formatter)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    """Write what one may want, each with the command for it, which is never wrapped."""
    for i, (what, command) in enumerate(examples):
        if i:
            formatter.write_paragraph()
        formatter.write_text(what)
        formatter.write(f"{'':>{formatter.current_indent}}  $ {command}\n")
