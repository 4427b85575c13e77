"""The YAML text of the matrix: read it strictly, write it in its one canonical form.

Everything in the file is text, ``true``, ``false`` or ``null``: a version that YAML would take for
a number (``3.10`` is 3.1 to it) has to be quoted, and a key given twice is refused. Reading keeps
the line of every value, so that problems can be told with their place, and the comment lines, so
that ``write_document(read_document(text)) == text`` holds for a file in canonical form.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Path: TypeAlias = "tuple[str | int, ...]"

_WIDTH = 100
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date",
    "null": "null",
}
_LITERALS: dict[str, object] = {"true": True, "false": False, "null": None}
#: Mappings that stand on one line where they fit: short pairs by CPU architecture or Python.
_FLOW_KEYS = frozenset({"python", "pypi"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in the file.

    Attributes:
        line: Counted from 1; 0 when it concerns the file as a whole.
        where: The path of keys, ``releases.2.9.variants.cu128``.
    """

    line: int
    where: str
    text: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.where}: {self.text}" if self.where else f"{place}{self.text}"


@dataclass(slots=True, kw_only=True)
class Document:
    """The file as plain data, with what canonical writing and good messages need beside it.

    Attributes:
        data: Mappings, lists, text, booleans and ``None``.
        lines: The line of each value by its path.
        comments: The comment lines above each key by its path; the file's head is under ``()``.
        problems: What is wrong already at the level of YAML.
    """

    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    comments: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Sequence[str | int]) -> int:
        """Return the line of the value at ``path``, or of the nearest one around it."""
        at = tuple(path)
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at, 0)


def path_text(path: Sequence[str | int]) -> str:
    """Write a path the way messages show it."""
    return ".".join(str(part) for part in path)


def read_document(text: str, *, keep_comments: bool = False) -> Document:
    """Read the YAML text of a matrix.

    Args:
        text: The whole file.
        keep_comments: Collect comment lines as well; only writing needs them.

    Returns:
        The document. Problems are collected in it, not raised, so that all can be shown at once.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = Document(data={})
    try:
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 0
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        document.problems.append(Problem(line=line, where="", text=f"this is not YAML: {said}"))
        return document
    value = _Reader(document).read(root, ()) if root is not None else None
    if isinstance(value, dict):
        document.data = value
    else:
        document.problems.append(Problem(line=1, where="", text="the file must hold a mapping"))
    if keep_comments:
        document.comments = _collect_comments(text, document)
    return document


class _Reader:
    """Turns YAML nodes into plain data; the nodes carry line, quoting style and repeated keys."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def read(self, node: Any, path: Path) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if node.id == "mapping":
            return self._mapping(node, path)
        if node.id == "sequence":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.id != "scalar":
                self._report(line, path, "a key must be text")
                continue
            key = str(key_node.value)
            here = (*path, key)
            if not key_node.style and key_node.tag != f"{_TAG}str":
                self._report(line, path, f'YAML reads the key {key} as no text; quote it: "{key}"')
            if key in result:
                first = self._document.lines[here]
                self._report(line, path, f"the key {key!r} is given twice, first in line {first}")
                continue
            self._document.lines[here] = line
            result[key] = self.read(value_node, here)
        return result

    def _scalar(self, node: Any, path: Path) -> object:
        text = str(node.value)
        if node.style or node.tag == f"{_TAG}str":
            return text
        if text in _LITERALS:
            return _LITERALS[text]
        if node.tag == f"{_TAG}null":
            advice = "an empty value must be written null"
        else:
            kind = _KINDS.get(node.tag.removeprefix(_TAG), "something else than text")
            advice = f'YAML reads {text} as {kind}; quote it: "{text}"'
        self._report(node.start_mark.line + 1, path, advice)
        return text

    def _report(self, line: int, path: Path, text: str) -> None:
        self._document.problems.append(Problem(line=line, where=path_text(path), text=text))


def _collect_comments(text: str, document: Document) -> dict[Path, tuple[str, ...]]:
    """Give every run of comment lines to the key below it; the first run is the file's head."""
    by_line: dict[int, Path] = {}
    for path, line in document.lines.items():
        if path and (line not in by_line or len(path) < len(by_line[line])):
            by_line[line] = path
    comments: dict[Path, tuple[str, ...]] = {}
    run: list[str] = []
    in_head = True
    for number, raw in enumerate(text.splitlines(), start=1):
        stripped = raw.strip()
        if stripped.startswith("#"):
            run.append(stripped)
        elif not stripped:
            if run and in_head:
                comments[()] = tuple(run)
                run = []
            in_head = False
        else:
            in_head = False
            if run and number in by_line:
                comments[by_line[number]] = tuple(run)
            run = []
    return comments


def write_document(document: Document) -> str:
    """Write a document in canonical form.

    One form only, so that a change to the data is a change to the lines it concerns: block style,
    two spaces, every text in double quotes, lists of text on one line where they fit in 100
    columns, long sentences folded, an empty line between the file's sections and releases.
    """
    lines = list(_Writer(document).top())
    return "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, document: Document) -> None:
        self._document = document

    def top(self) -> Iterator[str]:
        head = self._document.comments.get((), ())
        yield from head
        for index, (key, value) in enumerate(self._document.data.items()):
            if index or head:
                yield ""
            yield from self._entry(key, value, (key,), "")

    def _entry(self, key: str, value: Any, path: Path, indent: str) -> Iterator[str]:
        for comment in self._document.comments.get(path, ()):
            yield indent + comment
        head = f"{indent}{_key(key)}:"
        if _is_scalar(value):
            yield from _scalar_lines(head, value, indent)
        elif _is_flow(key, value):
            yield from _flow_lines(head, value, indent)
        elif isinstance(value, dict):
            yield head
            yield from self._mapping(value, path, indent + "  ")
        else:
            yield head
            for index, item in enumerate(value):
                yield from self._item(item, (*path, index), indent + "  ")

    def _mapping(self, value: Mapping[str, Any], path: Path, indent: str) -> Iterator[str]:
        for index, (key, item) in enumerate(value.items()):
            if index and path == ("releases",):
                yield ""
            yield from self._entry(key, item, (*path, key), indent)

    def _item(self, item: Mapping[str, Any], path: Path, indent: str) -> Iterator[str]:
        for comment in self._document.comments.get(path, ()):
            yield indent + comment
        first = True
        for line in self._mapping(item, path, indent + "  "):
            yield f"{indent}- {line[len(indent) + 2 :]}" if first else line
            first = False


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, bool | str)


def _is_flow(key: str, value: Any) -> bool:
    if isinstance(value, dict):
        return not value or key in _FLOW_KEYS
    return all(_is_scalar(item) for item in value)


def _key(key: str) -> str:
    plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in {
        *("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    }
    return key if plain else json.dumps(key, ensure_ascii=False)


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _flow_lines(head: str, value: Any, indent: str) -> Iterator[str]:
    line = f"{head} {_flow(value)}"
    if len(line) <= _WIDTH or isinstance(value, dict):
        yield line
        return
    yield f"{head} ["
    pieces = [_scalar(item) for item in value]
    rows = textwrap.wrap(
        ", ".join(piece.replace(" ", "\0") for piece in pieces) + ",",
        width=_WIDTH - len(indent) - 2,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for row in rows:
        yield f"{indent}  {row}".replace("\0", " ")
    yield f"{indent}]"


def _scalar_lines(head: str, value: object, indent: str) -> Iterator[str]:
    line = f"{head} {_scalar(value)}"
    if len(line) <= _WIDTH or not isinstance(value, str) or not _can_fold(value):
        yield line
        return
    yield f"{head} >-"
    yield from textwrap.wrap(
        value,
        width=_WIDTH,
        initial_indent=f"{indent}  ",
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _can_fold(text: str) -> bool:
    """Say whether folding keeps the text: single spaces only, none at its ends."""
    return text == " ".join(text.split())
