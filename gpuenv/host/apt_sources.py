"""Which package mirrors this host's apt uses, read from its own lists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ONE_LINE = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """One archive apt fetches from: an address, a suite and its components."""

    uri: str
    suite: str
    components: tuple[str, ...]


def load_apt_sources(root: Path) -> tuple[AptSource, ...]:
    """Read ``sources.list`` and ``sources.list.d`` of the system below ``root``.

    Both the one-line form and the deb822 form are read; what cannot be read is passed over.
    """
    etc = root / "etc" / "apt"
    found: list[AptSource] = []
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    for path in files:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found.extend(parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text))
    return tuple(found)


def parse_one_line(text: str) -> Iterator[AptSource]:
    """Parse lines such as ``deb [signed-by=…] http://deb.debian.org/debian bookworm main``."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if match:
            yield AptSource(uri=match[1], suite=match[2], components=tuple(match[3].split()))


def parse_deb822(text: str) -> Iterator[AptSource]:
    """Parse stanzas of ``Types: deb``, ``URIs: …``, ``Suites: bookworm``, ``Components: main``."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and name:
                fields[name] += " " + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        disabled = fields.get("enabled", "yes").lower() in {"no", "false"}
        if disabled or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield AptSource(
                    uri=uri, suite=suite, components=tuple(fields.get("components", "").split())
                )
