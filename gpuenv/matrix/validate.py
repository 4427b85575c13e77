"""Check a matrix file: its form by the JSON Schema, and what a schema cannot say by hand.

Every check returns all its problems with their lines; nothing is raised.
"""

from __future__ import annotations

import datetime as dt
import difflib
from typing import TYPE_CHECKING, Any

from gpuenv.matrix.document import Problem, path_text
from gpuenv.versions import DottedVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuenv.matrix.document import Document

_Path = tuple["str | int", ...]


def schema_problems(document: Document, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield where the document differs from its schema, in words."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(document.data):
        yield from _in_words(document, error)


def _in_words(document: Document, error: Any) -> Iterator[Problem]:
    path: _Path = tuple(error.absolute_path)

    def problem(text: str, *, at: _Path = path) -> Problem:
        return Problem(line=document.line_of(at), where=path_text(at), text=text)

    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", ()))
        for key in error.instance:
            if key not in known:
                yield problem(_unknown_key(key, known), at=(*path, key))
    elif error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        # jsonschema reports each missing key by itself and names it only in its message.
        named = [key for key in missing if f"'{key}' is" in error.message]
        yield problem(f"lacks {', '.join(named or missing)}")
    elif error.validator == "anyOf":
        best = min(error.context, key=lambda it: it.validator == "type", default=None)
        yield from _in_words(document, best) if best is not None else [problem(error.message)]
    else:
        yield problem(_wrong_value(error))


def _unknown_key(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    guess = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}"
    return f"unknown key {key!r}; {guess}"


def _wrong_value(error: Any) -> str:
    value, rule = error.instance, error.validator_value
    expected = error.schema.get("description", "") if isinstance(error.schema, dict) else ""
    match error.validator:
        case "pattern":
            subject = f"{value!r} does not have the form {rule}"
            return f"{subject} ({expected.rstrip('.')})" if expected else subject
        case "enum":
            return f"{value!r} is none of {', '.join(map(str, rule))}"
        case "const":
            return f"{value!r} is not {rule!r}"
        case "type":
            return f"{_short(value)} is not {_TYPES.get(rule, rule)}"
        case _:
            return str(error.message)


_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 - one line


def semantic_problems(document: Document) -> Iterator[Problem]:
    """Yield what is wrong in a document of the right form: references, order, repetition."""
    data = document.data
    for path, text in (
        *_unknown_sources(data),
        *_bad_days(data),
        *_bad_releases(data),
        *_bad_toolkits(data),
        *_bad_gpus(data),
        *_bad_bases(data),
    ):
        yield Problem(line=document.line_of(path), where=path_text(path), text=text)


def _walk(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    """Yield every mapping below a value with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))


def _unknown_sources(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    known = data["sources"]
    used: set[str] = set()
    for path, mapping in _walk(data):
        names = mapping.get("source") if path != ("sources",) else None
        if not isinstance(names, list):
            continue
        used.update(names)
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f"; did you mean {close[0]}?" if close else ""
                yield (*path, "source"), f"source {name!r} is not under sources{guess}"
    for name in known:
        if name not in used:
            yield ("sources", name), "no entry names this source"


def _bad_days(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    for path, mapping in _walk(data):
        for key in ("checked", "released"):
            day = mapping.get(key)
            if isinstance(day, str) and not _is_day(day):
                yield (*path, key), f"{day} is not a day of the calendar"


def _is_day(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _bad_releases(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    releases = data["releases"]
    yield from _out_of_order(("releases",), releases)
    for minor, release in releases.items():
        at: _Path = ("releases", minor)
        patches, variants = release["patches"], release["variants"]
        yield from _out_of_order((*at, "patches"), patches)
        for patch, it in patches.items():
            here = (*at, "patches", patch)
            if not patch.startswith(f"{minor}."):
                yield here, f"{patch} is no patch of {minor}"
            yield from _bad_pythons((*here, "python"), it["python"])
            yield from _bad_defaults((*here, "pypi"), patch, it["pypi"], variants)
        for variant, it in variants.items():
            yield from _bad_variant((*at, "variants", variant), it, patches, data)


def _bad_pythons(path: _Path, python: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    for arch, (first, last) in python.items():
        if _number(first) > _number(last):
            yield (*path, arch), f"the oldest Python, {first}, is newer than the newest, {last}"


def _bad_defaults(
    path: _Path, patch: str, defaults: Mapping[str, str], variants: Mapping[str, Any]
) -> Iterator[tuple[_Path, str]]:
    for arch, variant in defaults.items():
        it = variants.get(variant)
        if it is None or arch not in it["arch_list"] or patch not in it.get("patches", [patch]):
            yield (*path, arch), f"{patch} has no variant {variant} for {arch}"


def _bad_variant(
    path: _Path, it: Mapping[str, Any], patches: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[tuple[_Path, str]]:
    for patch in it.get("patches", ()):
        if patch not in patches:
            yield (*path, "patches"), f"{patch} is not under patches of this release"
    yield from _bad_doubts(path, it)
    variant = str(path[-1])
    if variant != "cpu":
        yield from _bad_cuda(path, it, data, major=variant[2:4], minor=variant[4:])


def _bad_doubts(path: _Path, it: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    doubts = it.get("uncertain", {})
    for arch in doubts:
        if arch not in it["arch_list"]:
            yield (*path, "uncertain", arch), f"there is no wheel for {arch} to be uncertain of"
    for arch, code in it["arch_list"].items():
        if code is None and it["confidence"] != "uncertain" and arch not in doubts:
            yield (*path, "arch_list", arch), "null needs a reason under uncertain"


def _bad_cuda(
    path: _Path, it: Mapping[str, Any], data: Mapping[str, Any], *, major: str, minor: str
) -> Iterator[tuple[_Path, str]]:
    cuda = f"{major}.{minor}"
    if cuda not in data["toolkits"]:
        yield path, f"toolkits has no {cuda}"
    if major not in data["cuda_majors"]:
        yield path, f"cuda_majors has no {major}"
    toolkit = it["toolkit"]
    if toolkit is not None and not toolkit.startswith(f"{cuda}."):
        yield (*path, "toolkit"), f"{toolkit} is no patch of CUDA {cuda}, which {path[-1]} means"


def _bad_toolkits(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    toolkits = data["toolkits"]
    yield from _out_of_order(("toolkits",), toolkits)
    for minor, it in toolkits.items():
        for key in ("drivers", "devel_images", "devel_wheels"):
            for patch in it.get(key, ()):
                if not patch.startswith(f"{minor}."):
                    yield ("toolkits", minor, key, patch), f"{patch} is no patch of CUDA {minor}"
            yield from _out_of_order(("toolkits", minor, key), it.get(key, {}))
        if "devel_images" in it and "devel_wheels" in it:
            yield ("toolkits", minor), "nvcc comes from an image or from wheels, not from both"


def _bad_gpus(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    seen: dict[str, int] = {}
    for index, entry in enumerate(data["gpus"]):
        for name in entry["names"]:
            key = name.casefold()
            if key in seen:
                yield ("gpus", index, "names"), f"{name} is named twice, also in entry {seen[key]}"
            seen.setdefault(key, index)


def _bad_bases(data: Mapping[str, Any]) -> Iterator[tuple[_Path, str]]:
    bases = data["base_images"]
    managed = [base["image"] for base in bases if base.get("managed")]
    if len(managed) != 1:
        found = f"not {', '.join(managed)}" if managed else "and there is none"
        yield ("base_images",), f"exactly one base must be managed, {found}"
    pythons = [base["python"] for base in bases]
    for index, python in enumerate(pythons):
        if python in pythons[:index]:
            yield ("base_images", index, "python"), f"another base has Python {python} already"


def _out_of_order(path: _Path, versions: Iterable[str]) -> Iterator[tuple[_Path, str]]:
    previous = None
    for version in versions:
        if previous is not None and _number(version) >= _number(previous):
            yield (*path, version), f"{version} stands behind {previous}; the newest comes first"
        previous = version


def _number(text: str) -> tuple[int, ...]:
    return DottedVersion.parse(text).parts
