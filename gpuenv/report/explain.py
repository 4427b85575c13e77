"""What ``gpuenv explain`` says, from the texts beside this file and the catalogue; no network.

An entry is found by its id, by a piece of an error message, or nearly.
"""

from __future__ import annotations

import textwrap
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuenv.checks.diagnose import PROBE_CHECK
from gpuenv.errors import ConfigurationError
from gpuenv.report.text import GROUP_TITLES, group_of, on_side
from gpuenv.resources import package_dir
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuenv.checks.model import Check, Side

MESSAGE_PREFIX = "message."
_WORDS_OF_A_MESSAGE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything there is to say of one finding or of one error text.

    Attributes:
        text: Pieces of the message, for entries that explain what another program printed.
        causes: Likeliest first.
        fixes: By side, in the order host, container, image, engine, project.
        look: Commands that show it without gpuenv.
        see: Where it is documented.
        detail: The check's own words on what exactly it reads and when it fires.
    """

    id: str
    title: str
    what: str
    why: str = ""
    causes: tuple[str, ...] = ()
    fixes: tuple[tuple[Side, tuple[str, ...]], ...] = ()
    look: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    detail: str = ""
    level: str = ""
    provides: tuple[str, ...] = ()


def load_explanations(checks: Iterable[Check]) -> dict[str, Explanation]:
    """Return every explanation by id: the catalogue's checks in order, then the messages."""
    texts = _load_texts()
    found: dict[str, Explanation] = {}
    for check in checks:
        found[check.id] = _explanation(check.id, texts.pop(check.id, {}), check)
    for name in (PROBE_CHECK, *(key for key in texts if key.startswith(MESSAGE_PREFIX))):
        if name in texts:
            found[name] = _explanation(name, texts[name], None)
    return found


def find_explanations(
    word: str, explanations: Mapping[str, Explanation]
) -> tuple[Explanation, ...]:
    """Return what fits a word: the one of that id, or those whose message is meant.

    Args:
        word: An id, the last part of one, or a piece of an error message (or a whole line of it).
        explanations: From :func:`load_explanations`.

    Raises:
        ConfigurationError: Nothing fits; the nearest ids are named.
    """
    wanted = word.strip()
    if wanted in explanations:
        return (explanations[wanted],)
    by_text = _by_text(wanted, explanations.values())
    if by_text:
        return by_text
    inside = [entry for name, entry in explanations.items() if wanted and wanted in name]
    if len(inside) == 1:
        return tuple(inside)
    near = [entry.id for entry in inside] or get_close_matches(
        wanted, list(explanations), n=5, cutoff=0.6
    )
    raise ConfigurationError(
        f"no explanation for {word!r}",
        fix=f"did you mean {', '.join(near)}?"
        if near
        else "gpuenv explain lists all; errors of gpuenv itself are in docs/troubleshooting.md",
        data={"nearest": near},
    )


def explanation_as_document(entry: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON-ready values."""
    return {
        "id": entry.id,
        "title": entry.title,
        "level": entry.level,
        "provides": list(entry.provides),
        "text": list(entry.text),
        "what": entry.what,
        "why": entry.why,
        "causes": list(entry.causes),
        "fixes": {side: list(texts) for side, texts in entry.fixes},
        "look": list(entry.look),
        "see": list(entry.see),
        "detail": entry.detail,
    }


def render_explanation(entry: Explanation, *, width: int) -> str:
    """Return an explanation as text of that width; commands stay whole on their lines."""
    return "\n".join(_lines(entry, max(50, min(width, 100)))) + "\n"


def render_list(explanations: Mapping[str, Explanation], *, width: int) -> str:
    """Return all ids with their titles, by area."""
    groups: dict[str, list[Explanation]] = {}
    for entry in explanations.values():
        is_message = entry.id.startswith(MESSAGE_PREFIX)
        key = "Error messages" if is_message else GROUP_TITLES[group_of(entry.id)]
        groups.setdefault(key, []).append(entry)
    column = max((len(name) for name in explanations), default=0)
    lines: list[str] = []
    for title, entries in groups.items():
        lines += ["", title] if lines else [title]
        for entry in entries:
            room = max(10, width - column - 4)
            words = entry.title if len(entry.title) <= room else entry.title[: room - 3] + "..."
            lines.append(f"  {entry.id.ljust(column)}  {words}")
    lines += ["", "gpuenv explain ID, or a piece of an error message in quotes, tells more."]
    return "\n".join(lines) + "\n"


def _lines(entry: Explanation, width: int) -> Iterator[str]:
    wrapped = partial(_wrapped, width=width)
    yield f"{entry.id}: {entry.title}"
    if entry.level:
        answers = f", answers --require {','.join(entry.provides)}" if entry.provides else ""
        yield f"  looked at from --level {entry.level}{answers}"
    meaning = ("What it means", "Why it comes")
    what, why = meaning if entry.text else ("What is checked", "Why it matters")
    sections = {
        what: wrapped(entry.what),
        why: wrapped(entry.why),
        "Causes, likeliest first": [
            line
            for number, cause in enumerate(entry.causes, start=1)
            for line in wrapped(cause, f"  {number}. ", "     ")
        ],
        "What to do": list(_fix_lines(entry, width)),
        "See for yourself": [f"    {command}" for command in entry.look],
        "In the check's own words": [
            line for part in entry.detail.split("\n\n") for line in wrapped(part)
        ],
        "Documented in": [f"  {place}" for place in entry.see],
    }
    for title, lines in sections.items():
        if lines:
            yield from ["", title, *lines]


def _fix_lines(entry: Explanation, width: int) -> Iterator[str]:
    for side, texts in entry.fixes:
        yield f"  {on_side(side)}:"
        for text in texts:
            yield from _wrapped(text, "    - ", "      ", width=width)


def _wrapped(text: str, indent: str = "  ", hang: str | None = None, *, width: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hang is None else hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _by_text(wanted: str, entries: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Return the messages that stand in the text given, or, where none does, that hold it."""
    lowered = " ".join(wanted.lower().split())
    pieces = [
        (max(len(text) for text in hits), entry)
        for entry in entries
        if (hits := [text for text in entry.text if text.lower() in lowered])
    ]
    if pieces:
        longest = max(length for length, _ in pieces)
        return tuple(entry for length, entry in pieces if length == longest)
    enough = 8
    if len(lowered) < enough or " " not in lowered:
        return ()
    whole = tuple(entry for entry in entries if any(lowered in it.lower() for it in entry.text))
    return whole or _by_cut_line(lowered.split(), entries)


def _by_cut_line(words: Sequence[str], entries: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Return the messages of which a line holds a part at its end, where it was cut off.

    Three words in a row are the least: fewer are in too many messages.
    """
    for start in range(len(words) - _WORDS_OF_A_MESSAGE + 1):
        part = " ".join(words[start:])
        hits = [it for it in entries if any(text.lower().startswith(part) for text in it.text)]
        if hits:
            return tuple(hits)
    return ()


def _load_texts() -> dict[str, Mapping[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
    texts: dict[str, Mapping[str, Any]] = {}
    for path in sorted((package_dir() / "report" / "explanations").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        texts.update(yaml.load(text, Loader=loader))  # noqa: S506 - a safe loader
    return texts


def _explanation(name: str, entry: Mapping[str, Any], check: Check | None) -> Explanation:
    detail = check.explanation.strip() if check is not None else ""
    what = str(entry.get("what") or "")
    if not what:
        what, detail = detail, ""
    sides: Sequence[Side] = ("host", "container", "image", "engine", "project")
    fixes = entry.get("fix") or {}
    title = str(entry.get("title") or "")
    if check is not None:
        title = check.title
    elif not title:
        title = what.split(".")[0]
    return Explanation(
        id=name,
        title=title,
        what=what,
        why=str(entry.get("why") or ""),
        causes=tuple(entry.get("causes") or ()),
        fixes=tuple((side, tuple(fixes[side])) for side in sides if side in fixes),
        look=tuple(entry.get("look") or ()),
        see=tuple(entry.get("see") or ()),
        text=tuple(entry.get("text") or ()),
        detail=detail,
        level=check.level.name.lower() if check is not None else "",
        provides=check.provides if check is not None else (),
    )
