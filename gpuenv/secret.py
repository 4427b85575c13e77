"""Credentials that do not show by accident, and addresses made safe for messages."""

from __future__ import annotations

import re
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

MASK = "***"
_URL_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


class Secret:
    """A text that must not reach a log, an exception, an argument list or JSON.

    ``repr``, ``str`` and formatting give a mask; only :meth:`reveal` gives the text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __deepcopy__(self, memo: object) -> Secret:
        return self  # it never changes

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written to files")


def redact_url(url: str) -> str:
    """Return an address without what may be a credential.

    User name and password go (a token often stands in the user's place), and so do the query and
    the fragment, where signed addresses carry theirs::

        https://bob:pa55@pypi.example/simple/?token=x -> https://***@pypi.example/simple/?***
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if not parts.scheme or not parts.netloc:
        return url
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{MASK}@{netloc.rpartition('@')[2]}"
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", ""))


def redact_text(text: str) -> str:
    """Return ``text`` with every address in it made safe by :func:`redact_url`."""
    return _URL_IN_TEXT.sub(lambda match: redact_url(match[0]), text)
