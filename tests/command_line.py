"""The command, run in the process of the tests."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from gcodec.cli.main import cli


def run(*args: object, code: int = 0, **more: Any) -> Result:
    """Run the command, and check its exit code; `more` are arguments of `CliRunner.invoke`."""
    result = CliRunner().invoke(cli, list(map(str, args)), **more)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def json_of(*args: object, code: int = 0, schema: str | None = None) -> dict[str, Any]:
    """Return the JSON document of a verb, and check its schema and its exit code."""
    printed = run(*args, "--json", code=code).stdout
    body: dict[str, Any] = json.loads(printed, parse_constant=_refuse)
    assert body["schema"] == f"gcodec.{schema or args[0]}/1"
    assert body.get("exit_code", code) == code
    return body


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")
