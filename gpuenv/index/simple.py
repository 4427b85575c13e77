"""A client of simple repositories (PEP 503, PEP 691), with failures that can be told apart."""

from __future__ import annotations

import ipaddress
import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuenv.index.failures import (
    IndexRefusedError,
    IndexUnreachableError,
    NotOnIndexError,
    PackageIndexError,
    explain_request_failure,
)
from gpuenv.index.links import (
    ACCEPT,
    Archive,
    Link,
    UnreadablePageError,
    normalize_name,
    parse_archive,
    parse_page,
)
from gpuenv.index.local import local_links
from gpuenv.index.parallel import run_in_parallel
from gpuenv.index.session import new_session, tls_context
from gpuenv.secret import redact_url
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from ssl import SSLContext

    from requests import Response, Session

    from gpuenv.index.sources import PackageSources, Source


_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 20.0
_PAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPage:
    """What one source said about one project.

    Attributes:
        files: Its archives; empty where ``error`` tells why.
        flat: They stand on the source's own page, without a page for each project.
        error: Why there is no answer; ``NotOnIndexError`` when the answer is "nothing".
    """

    source: Source
    project: str
    files: tuple[tuple[Link, Archive], ...] = ()
    flat: bool = False
    error: PackageIndexError | None = None


class SimpleClient:
    """Asks the sources of one host; may be used by several threads at once.

    Args:
        sources: For certificate, proxies, trusted hosts and the time limit of one answer.
    """

    def __init__(self, sources: PackageSources) -> None:
        self.sources = sources
        self._local = threading.local()
        self._lock = threading.Lock()
        self._context: SSLContext | None = None
        read_timeout_s = min(sources.timeout_s or _READ_TIMEOUT_S, _READ_TIMEOUT_S)
        self._timeout_s = (min(_CONNECT_TIMEOUT_S, read_timeout_s), read_timeout_s)
        self.bytes_read = 0

    def project_page(self, source: Source, project: str) -> ProjectPage:
        """Return what a source has of a project; a failure is part of the answer."""
        name = normalize_name(project)
        try:
            files, flat = self._project_files(source, name)
        except PackageIndexError as error:
            return ProjectPage(source=source, project=name, error=error)
        return ProjectPage(source=source, project=name, files=files, flat=flat)

    def links_page(self, source: Source, project: str) -> ProjectPage:
        """Return what a page of links (pip's ``find-links``) has of a project."""
        name = normalize_name(project)
        try:
            files = self._local_files(source, name) or self._page_files(
                source, source.url.reveal(), name
            )
        except PackageIndexError as error:
            return ProjectPage(source=source, project=name, flat=True, error=error)
        return ProjectPage(source=source, project=name, files=files, flat=True)

    def offers(self, source: Source, project: str, filename: str) -> bool:
        """Say whether a remote source has one exact file; one that does not answer has not.

        The page is searched and not parsed: some have many thousands of files. A file name stands
        in quotes in JSON and between the tags of its anchor in HTML.
        """
        is_page = source in self.sources.find_links
        root = source.url.reveal()
        url = root if is_page else _below(root, f"{normalize_name(project)}/")
        try:
            body = self.body(self.get(url, source=source, headers={"Accept": ACCEPT}))
        except PackageIndexError:
            return False
        name = filename.encode()
        return b'"%b"' % name in body or b">%b</" % name in body

    def get(self, url: str, *, source: Source | None, headers: Mapping[str, str]) -> Response:
        """Send one GET and return the answer, its body not yet read.

        Args:
            url: Where; may hold a login of its own.
            source: Its login is sent to the same host, and to no other.
            headers: Beside the client's own.

        Raises:
            IndexUnreachableError: No answer, or one of the kind 5xx or 429.
            IndexRefusedError: 401, 403 or 407.
            NotOnIndexError: 404 or 410.
            PackageIndexError: Any other answer that is no success.
        """
        import requests

        parts = urlsplit(url)
        login = None
        if source is not None and source.host == parts.hostname:
            login = source.login
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        place = redact_url(url)
        try:
            verified = not self._is_trusted(parts.hostname or "", parts.port)
            response = self._session(verified=verified).get(
                bare,
                headers=dict(headers),
                auth=(login[0], login[1].reveal()) if login else None,
                timeout=self._timeout_s,
                proxies=self._proxies(bare),
                verify=verified,
                stream=True,
            )
        except requests.RequestException as exc:
            raise explain_request_failure(exc, place, self.sources) from exc
        return _checked(response, place, with_login=login is not None)

    def body(self, response: Response, *, limit: int = _PAGE_BYTES_MAX) -> bytes:
        """Read the body of an answer, counted in ``bytes_read``.

        Raises:
            IndexUnreachableError: The connection broke half-way.
            PackageIndexError: There is more than ``limit``.
        """
        import requests

        place = redact_url(response.url)
        chunks, size = [], 0
        try:
            with response:
                for chunk in response.iter_content(1 << 16):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        raise PackageIndexError(
                            f"{place} sends more than {limit >> 20} MiB", why="we stopped reading"
                        )
        except requests.RequestException as exc:
            raise explain_request_failure(exc, place, self.sources) from exc
        finally:
            with self._lock:
                self.bytes_read += size
        return b"".join(chunks)

    # How a project is found on the kinds of sources.

    def _project_files(
        self, source: Source, name: str
    ) -> tuple[tuple[tuple[Link, Archive], ...], bool]:
        if source.path is not None:
            return self._local_files(source, name), False
        root = source.url.reveal()
        try:
            return self._page_files(source, _below(root, f"{name}/"), name), False
        except (NotOnIndexError, IndexRefusedError) as first:
            # A mirror of the PyTorch wheels is often one bare page of links instead.
            if source.name is None or not source.name.startswith("pytorch-"):
                raise
            try:
                files = self._page_files(source, _below(root, ""), name)
            except PackageIndexError:
                raise first from None
            if not files:
                raise
            return files, True

    def _local_files(self, source: Source, name: str) -> tuple[tuple[Link, Archive], ...]:
        if source.path is None:
            return ()
        found = tuple((link, archive) for link, archive, _ in local_links(source, name))
        if not found:
            raise NotOnIndexError(f"{source.location} has no {name}", why="no file there is one")
        return found

    def _page_files(self, source: Source, url: str, name: str) -> tuple[tuple[Link, Archive], ...]:
        response = self.get(url, source=source, headers={"Accept": ACCEPT})
        body = self.body(response)
        try:
            links = parse_page(body, response.headers.get("Content-Type", ""), response.url)
        except UnreadablePageError as exc:
            raise PackageIndexError(
                f"{redact_url(url)} is no page of a package index",
                why=str(exc),
                fix="check the address; a simple repository often ends in /simple",
            ) from exc
        parsed = ((link, parse_archive(link.filename)) for link in links)
        return tuple((li, ar) for li, ar in parsed if ar is not None and ar.project == name)

    # Two sessions a thread, with this host's settings and no others: one that checks certificates
    # and one, for hosts that are trusted as they are, that does not.

    def _session(self, *, verified: bool) -> Session:
        name = "verified" if verified else "unverified"
        session: Session | None = getattr(self._local, name, None)
        if session is None:
            with self._lock:
                if verified and self._context is None:
                    self._context = tls_context(self.sources)
            context = self._context if verified else None
            session = new_session(self.sources, context)
            setattr(self._local, name, session)
        return session

    def _proxies(self, url: str) -> dict[str, str]:
        proxies = {scheme: setting.value.reveal() for scheme, setting in self.sources.proxies}
        no_proxy = proxies.pop("no", "")
        # requests' own test would change the process's environment for a moment.
        return {} if bypasses_proxy(url, no_proxy) else proxies

    def _is_trusted(self, host: str, port: int | None) -> bool:
        trusted = {setting.value for setting in self.sources.trusted_hosts}
        return bool(trusted & {"*", host, f"{host}:{port or 443}"})


def bypasses_proxy(url: str, no_proxy: str) -> bool:
    """Say whether ``no_proxy`` (``localhost,.corp.example,10.0.0.0/8,host:8080``) names a host."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    for entry in re.split(r"[,\s]+", no_proxy.strip().lower()):
        if not entry:
            continue
        if entry == "*" or _is_in_network(host, entry):
            return True
        name, _, wanted_port = entry.partition(":")
        name = name.removeprefix("*").lstrip(".")
        fits = host == name or host.endswith(f".{name}")
        if fits and wanted_port in {"", str(port)}:
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _below(root: str, rest: str) -> str:
    parts = urlsplit(root)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{rest}").geturl()


def _checked(response: Response, place: str, *, with_login: bool) -> Response:
    status = response.status_code
    if status < 400:  # noqa: PLR2004 - HTTP's own border between success and failure
        return response
    response.close()
    if status in {401, 403, 407}:
        raise IndexRefusedError(place, status, with_login=with_login)
    if status in {404, 410}:
        raise NotOnIndexError(f"{place} does not exist", why=f"HTTP status {status}")
    if status == 429 or status >= 500:  # noqa: PLR2004 - likewise
        raise IndexUnreachableError(place, "server", f"HTTP status {status}")
    raise PackageIndexError(f"{place} gives no page", why=f"HTTP status {status}")


def fetch_pages(
    client: SimpleClient,
    wanted: Iterable[tuple[Source, str]],
    *,
    time_limit_s: float = 20.0,
) -> dict[tuple[Source, str], ProjectPage]:
    """Ask many sources at once, and take silence for an answer after a while.

    Args:
        client: Who asks.
        wanted: Pairs of source and project; a source among the host's ``find_links`` is read as a
            page of links, any other as an index.
        time_limit_s: For all of them together.
    """
    pairs = list(dict.fromkeys((source, normalize_name(project)) for source, project in wanted))
    links = set(client.sources.find_links)

    def ask(source: Source, project: str) -> Callable[[], ProjectPage]:
        method = client.links_page if source in links else client.project_page
        return lambda: method(source, project)

    answers = run_in_parallel([ask(*pair) for pair in pairs], time_limit_s=time_limit_s)
    return {
        pair: answer
        if answer is not None
        else ProjectPage(
            source=pair[0],
            project=pair[1],
            error=IndexUnreachableError(
                pair[0].location, "timeout", f"timeout: no answer within {time_limit_s:g} s"
            ),
        )
        for pair, answer in zip(pairs, answers, strict=True)
    }
