"""Build hook: a wheel carries the kernels that ``tools/compile_kernels.py`` has compiled.

Without compiled kernels, the wheel is for all platforms, and compiles kernels on first use.

Wheels carry kernels for Linux only. The tag of a wheel names one machine, so the wheel carries the
archives of one machine: that of the host, or ``GCODEC_WHEEL_MACHINE``, such as aarch64. Archives
of another machine, which were compiled under emulation, therefore do not keep pip from installing
the sources on the host.

Another hook reads the description from README.md, whose links are relative in the repository and
absolute on the package index.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_VARIABLE = "GCODEC_WHEEL_MACHINE"
_SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}


def machine_of(level: str) -> str:
    """Return the machine of a level of processors."""
    return "x86_64" if level.startswith("x86-64") else level


class KernelHook(BuildHookInterface):
    """Adds archives of compiled kernels, and the name of their platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the archives that were made of these sources."""
        runtime = Path(self.root, "gcodec", "runtime")
        spec = importlib.util.spec_from_file_location("build_id", runtime / "build_id.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        build = module.build_id().encode()
        chosen = os.environ.get(_VARIABLE)
        host = platform.machine().lower()
        machine = chosen or _SYNONYMS.get(host, host)
        for path in sorted((runtime / "shipped").glob("*.zip")):
            if sys.platform != "linux" or machine_of(path.stem) != machine:
                continue
            with zipfile.ZipFile(path) as archive:
                fits = archive.comment == build
            if not fits:
                self.app.display_warning(f"{path.name} is of other sources; it is left out")
                continue
            build_data["force_include"][str(path)] = f"gcodec/runtime/shipped/{path.name}"
            build_data["pure_python"] = False
            # Objects call functions of the C library that have not changed for decades.
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}"
        if chosen and build_data["pure_python"]:
            raise ValueError(f"{_VARIABLE} is {chosen}, of which there is no archive of kernels")


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose relative links and images lead into a repository."""

    def link(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        kind = "raw" if label.startswith("!") else "blob"
        return f"{label}({repository}/{kind}/main/{target})"

    return re.sub(r"(!?\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)", link, text)


class ReadmeHook(MetadataHookInterface):
    """Sets the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add README.md with absolute links."""
        text = Path(self.root, "README.md").read_text("utf-8")
        text = absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
