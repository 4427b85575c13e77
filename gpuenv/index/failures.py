"""What can go wrong between us and a package index, told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from gpuenv.errors import GpuenvError
from gpuenv.secret import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.index.sources import PackageSources

UnreachableCause: TypeAlias = Literal[
    "name-resolution", "connection", "tls", "proxy", "timeout", "server"
]

_FIXES: dict[UnreachableCause, str] = {
    "name-resolution": "check the host name and this host's DNS, or name a mirror with --index-url",
    "connection": "check that the server runs and that no firewall or missing proxy is between",
    "tls": "give the CA that signs for this server with --ca-bundle",
    "proxy": "check the proxy settings (https_proxy, pip's proxy)",
    "timeout": "try again, or name a nearer mirror with --index-url",
    "server": "try again later, or name a mirror with --index-url",
}


class PackageIndexError(GpuenvError):
    """An index does not give what was asked of it."""

    exit_code = 5
    slug = "package-index"


class IndexUnreachableError(PackageIndexError):
    """No usable answer came: name, connection, TLS, proxy, time or the server's own trouble.

    Attributes:
        cause: Which of these.
    """

    slug = "index-unreachable"

    def __init__(self, place: str, cause: UnreachableCause, why: str) -> None:
        super().__init__(f"{place} cannot be reached", why=why, fix=_FIXES[cause])
        self.cause = cause


class IndexRefusedError(PackageIndexError):
    """The index wants credentials, or does not accept those it got (401, 403, 407)."""

    slug = "index-refused"

    def __init__(self, place: str, status: int, *, with_login: bool) -> None:
        login = "the login it got" if with_login else "no login was sent"
        super().__init__(
            f"{place} refuses us",
            why=f"HTTP status {status}; {login}",
            fix="put the login into pip's settings, the address or ~/.netrc",
        )
        self.status = status


class NotOnIndexError(PackageIndexError):
    """The index answers and does not have it (404, 410)."""

    slug = "not-on-index"


def explain_request_failure(
    exc: Exception, place: str, sources: PackageSources
) -> IndexUnreachableError:
    """Tell from an exception of requests what stood in the way."""
    import requests

    causes = list(_chain(exc))
    names = {type(cause).__name__ for cause in causes}
    reason = sources.redact(redact_text(str(causes[-1]) or type(causes[-1]).__name__))
    cause: UnreachableCause
    if isinstance(exc, requests.exceptions.ProxyError) or "ProxyError" in names:
        cause = "proxy"
    elif isinstance(exc, requests.exceptions.SSLError) or names & {
        "SSLError",
        "SSLCertVerificationError",
    }:
        cause = "tls"
    elif names & {"NameResolutionError", "gaierror"}:
        cause = "name-resolution"
    elif isinstance(exc, requests.exceptions.Timeout) or (
        names & {"ReadTimeoutError", "ConnectTimeoutError", "TimeoutError"}
    ):
        cause = "timeout"
    else:
        cause = "connection"
    # It is the server that is out of reach, whatever was asked of it.
    host = urlsplit(place).netloc.rpartition("@")[2] or place
    return IndexUnreachableError(host, cause, f"{cause.replace('-', ' ')}: {reason}")


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what is inside it; urllib3 keeps the cause in ``reason``."""
    seen: set[int] = set()
    current: Any = exc
    while isinstance(current, BaseException) and id(current) not in seen:
        seen.add(id(current))
        yield current
        inner = next((a for a in current.args if isinstance(a, BaseException)), None)
        current = (
            getattr(current, "reason", None) or inner or current.__cause__ or current.__context__
        )
