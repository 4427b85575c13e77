"""What the user asks of the doctor: words of ``--require`` and ``--skip``, checked and kept."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuenv.checks.model import Check, Facts, Level


def split_words(values: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a flag that may be repeated and may hold commas, each once."""
    words = (word.strip() for value in values for word in value.split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def require_known_words(words: Sequence[str], checks: Sequence[Check]) -> None:
    """Refuse a ``--require`` word that no check answers to.

    Raises:
        ConfigurationError: There is one; the nearest known word is named.
    """
    known = sorted({word for check in checks for word in check.provides})
    for word in words:
        if word not in known:
            raise _unknown("--require", word, known, "no check answers to it")


def require_known_ids(patterns: Sequence[str], checks: Sequence[Check]) -> None:
    """Refuse a ``--skip`` pattern that fits no check: a typing error must not hide nothing.

    Raises:
        ConfigurationError: There is one; the nearest id is named.
    """
    known = [check.id for check in checks]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise _unknown("--skip", pattern, known, "no check has that id")


def ask_again(
    facts: Facts,
    *,
    level: Level | None,
    require: Sequence[str],
    expect_gpus: int | None,
    skip: Sequence[str],
) -> Facts:
    """Return captured facts with what is asked of them now; what is not asked now stays."""
    asked = dict(facts.asked)
    if level is not None:
        asked["level"] = int(level)
    if require:
        asked["require"] = list(require)
    if expect_gpus is not None:
        asked["expect_gpus"] = expect_gpus
    if skip:
        asked["skip"] = list(skip)
    return replace(facts, asked=asked)


def _unknown(flag: str, word: str, known: Sequence[str], why: str) -> ConfigurationError:
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    few = 12
    fix = f"did you mean {near[0]}?" if near else ""
    if not near:
        fix = f"known: {', '.join(known)}" if len(known) <= few else "`gpuenv explain` lists them"
    return ConfigurationError(f"{flag} {word}: {why}", fix=fix)
