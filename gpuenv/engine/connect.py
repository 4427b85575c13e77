"""Find the engine the user means, and say exactly why when it cannot be used.

Where no address is given, the first of these decides: ``GPUENV_ENGINE``, ``GPUENV_HOST``,
``DOCKER_HOST``, ``DOCKER_CONTEXT``, ``host`` in ``gpuenv.toml``, the context chosen in Docker's own
configuration. Without any of them these sockets are tried in turn: ``/var/run/docker.sock``, the
rootless one in ``XDG_RUNTIME_DIR``, Docker Desktop's in the home folder, and the engine that
``gpuenv engine up`` started. No ``docker`` program is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from gpuenv.engine import errors as e
from gpuenv.engine.capabilities import EngineVersion
from gpuenv.engine.docker_config import docker_folder, load_docker_config
from gpuenv.errors import EngineUnavailableError
from gpuenv.reading import parse_json, read_named_text, reason
from gpuenv.state import state_dir
from gpuenv.values import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.engine.transport import Transport, TransportError

PRIVATE = "private"
Settled: TypeAlias = "tuple[str, str]"
"""An address and where it was written: ``("ssh://gpu01", "gpuenv.toml: host")``."""
_DEFAULT_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Certificates for an engine on TCP; ``ca`` ``None`` trusts what the system trusts."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Where an engine should be, and who said so.

    Attributes:
        url: ``unix:///PATH``, ``tcp://HOST:PORT`` or ``ssh://HOST``.
        found_via: ``--engine``, ``DOCKER_HOST``, ``context work``, ``default socket``.
    """

    url: str
    found_via: str
    tls: TlsFiles | None = None


class ForwardedSocket(Protocol):
    """A remote engine's socket, made reachable on this host."""

    path: str

    def explain(self, error: EngineUnavailableError) -> EngineUnavailableError:
        """Return why no engine answers there, where the way to it knows better."""
        ...

    def close(self) -> None:
        """End the forwarding."""
        ...


def find_addresses(
    target: str | None, environ: Mapping[str, str], *, settled: Settled | None = None
) -> tuple[EngineAddress, ...]:
    """Return the addresses to try, in order; one only where the user named it.

    Args:
        target: A URL, the path of a socket, ``private``, or the name of a Docker context.
        environ: Where the variables and the home folder are looked up.
        settled: What a settings file says, and which; every variable wins over it.
    """
    for value, origin in (
        (target, "--engine"),
        (environ.get("GPUENV_ENGINE"), "GPUENV_ENGINE"),
        (environ.get("GPUENV_HOST"), "GPUENV_HOST"),
    ):
        if value:
            return (_named(value, origin, environ),)
    if environ.get("DOCKER_HOST"):
        return (
            EngineAddress(
                url=_checked_url(environ["DOCKER_HOST"], "DOCKER_HOST"),
                found_via="DOCKER_HOST",
                tls=_environment_tls(environ),
            ),
        )
    if settled is not None and not environ.get("DOCKER_CONTEXT"):
        return (_named(*settled, environ),)
    context = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if context and context != "default":
        return (_context(context, environ),)
    sockets = [(_DEFAULT_SOCKET, "default socket")]
    if environ.get("XDG_RUNTIME_DIR"):
        sockets.append((f"{environ['XDG_RUNTIME_DIR']}/docker.sock", "rootless socket"))
    if environ.get("HOME"):
        sockets.append((f"{environ['HOME']}/.docker/run/docker.sock", "Docker Desktop"))
    if private := private_socket(environ):
        sockets.append((private, "gpuenv engine up"))
    return tuple(EngineAddress(url=f"unix://{path}", found_via=via) for path, via in sockets)


def record_path(environ: Mapping[str, str]) -> Path:
    """Return where ``gpuenv engine up`` notes what it started."""
    return state_dir(environ) / "engine" / "engine.json"


def private_socket(environ: Mapping[str, str]) -> str | None:
    """Return the socket of the engine that ``gpuenv engine up`` started, if it left a record."""
    try:
        return str(json.loads(record_path(environ).read_text("utf-8"))["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _named(value: str, origin: str, environ: Mapping[str, str]) -> EngineAddress:
    if value == PRIVATE:
        path = private_socket(environ)
        if path is None:
            raise e.EngineSocketMissingError(
                "gpuenv runs no engine of its own",
                why=f"{origin} says {PRIVATE}, and there is no record of one",
                fix="start it with gpuenv engine up",
            )
        return EngineAddress(url=f"unix://{path}", found_via="gpuenv engine up")
    if value.startswith("/"):
        return EngineAddress(url=f"unix://{value}", found_via=origin)
    if "://" in value:
        return EngineAddress(
            url=_checked_url(value, origin), found_via=origin, tls=_environment_tls(environ)
        )
    return _context(value, environ)


def _checked_url(url: str, origin: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise e.EngineAddressError(
            f"{origin} is not an address: {url}", why=str(exc), fix="write it like tcp://host:2376"
        ) from exc
    if parts.scheme not in {"unix", "tcp", "http", "https", "ssh"}:
        raise e.EngineAddressError(
            f"{origin} has a scheme that gpuenv does not speak: {url}",
            why=f"{parts.scheme!r} is none of unix, tcp, ssh" if parts.scheme else "it has none",
            fix="write it like unix:///var/run/docker.sock or tcp://host:2376",
        )
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.netloc:
            raise e.EngineAddressError(
                f"{origin} names no socket: {url}",
                why="the path must be absolute",
                fix="write it with three slashes: unix:///var/run/docker.sock",
            )
        return url
    if not parts.hostname:
        raise e.EngineAddressError(
            f"{origin} names no host: {url}", fix="write it like tcp://host:2376"
        )
    if parts.scheme == "ssh":
        return url
    return f"tcp://{_bracketed(parts.hostname)}:{port or 2375}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _current_context(environ: Mapping[str, str]) -> str:
    return str(load_docker_config(environ).get("currentContext") or "")


def _context(name: str, environ: Mapping[str, str]) -> EngineAddress:
    """Return the address of a Docker context: a folder named by the SHA-256 of its name."""
    if name == "default":
        return EngineAddress(url=f"unix://{_DEFAULT_SOCKET}", found_via="context default")
    folder = docker_folder(environ) or Path("/nonexistent")
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts" / "meta" / digest / "meta.json"
    try:
        endpoint = _read_meta(meta)["Endpoints"]["docker"]
        url = str(endpoint["Host"])
    except FileNotFoundError as exc:
        raise e.EngineContextError(
            f"there is no Docker context {name}",
            why=f"known: {', '.join(_context_names(folder)) or 'none but default'}",
            fix="name one of them, or an address like unix:///var/run/docker.sock",
        ) from exc
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise e.EngineContextError(
            f"the Docker context {name} is broken",
            why=f"{meta}: {_meta_fault(exc)}",
            fix="make it anew with docker context create, or name the engine with --engine",
        ) from exc
    tls_folder = folder / "contexts" / "tls" / digest / "docker"
    tls = None
    if tls_folder.is_dir() or endpoint.get("SkipTLSVerify"):
        tls = _tls_in(tls_folder, verify=not endpoint.get("SkipTLSVerify"))
    return EngineAddress(
        url=_checked_url(url, f"context {name}"), found_via=f"context {name}", tls=tls
    )


def _meta_fault(exc: Exception) -> str:
    if isinstance(exc, (OSError, UnicodeDecodeError)):
        return reason(exc)
    return f"it has no {exc}" if isinstance(exc, KeyError) else str(exc)


def _read_meta(path: Path) -> Any:
    return parse_json(read_named_text(path))


def _context_names(folder: Path) -> list[str]:
    def name_in(meta: Path) -> str:
        try:
            return str(_read_meta(meta)["Name"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    found = {name_in(meta) for meta in (folder / "contexts" / "meta").glob("*/meta.json")}
    return sorted(found - {""})


def _environment_tls(environ: Mapping[str, str]) -> TlsFiles | None:
    """Return the TLS files by Docker's variables: ``DOCKER_TLS_VERIFY``, ``DOCKER_CERT_PATH``."""
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not verify and not environ.get("DOCKER_TLS"):
        return None
    folder = environ.get("DOCKER_CERT_PATH")
    base = Path(folder) if folder else docker_folder(environ)
    return _tls_in(base, verify=verify) if base else TlsFiles(verify=verify)


def _tls_in(folder: Path, *, verify: bool) -> TlsFiles:
    def there(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    return TlsFiles(ca=there("ca.pem"), cert=there("cert.pem"), key=there("key.pem"), verify=verify)


# --- connecting ---------------------------------------------------------------------------------


def connect(
    target: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    settled: Settled | None = None,
    transport: Callable[[str], ForwardedSocket] | None = None,
    timeout_s: float = 20,
) -> ContainerEngine:
    """Connect to the engine the user means and ask it once what it can do.

    Args:
        target: The value of ``--engine``; see :func:`find_addresses`.
        environ: The process's own by default.
        settled: What a settings file says, and which.
        transport: Opens ``ssh://`` addresses: forwards the remote socket and returns its local end.
        timeout_s: How long the first answers may take.

    Raises:
        EngineUnavailableError: A subclass for each reason; where several sockets were tried, the
            one that came closest.
    """
    return locate(
        target, environ=environ, settled=settled, transport=transport, timeout_s=timeout_s
    )[0]


def locate(
    target: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    settled: Settled | None = None,
    transport: Callable[[str], ForwardedSocket] | None = None,
    timeout_s: float = 20,
) -> tuple[ContainerEngine, EngineAddress]:
    """Connect as :func:`connect` does, and tell by which address."""
    environ = os.environ if environ is None else environ
    addresses = find_addresses(target, environ, settled=settled)
    failures: list[EngineUnavailableError] = []
    for address in addresses:
        try:
            return open_address(address, transport=transport, timeout_s=timeout_s), address
        except (  # noqa: PERF203 - one turn a socket
            e.EngineSocketMissingError,
            e.EnginePermissionError,
            e.EngineNotRunningError,
        ) as error:
            failures.append(error)
    raise closest_failure(failures)


def closest_failure(failures: Sequence[EngineUnavailableError]) -> EngineUnavailableError:
    """Return the failure of the address that came closest to an engine."""
    for failure in failures:
        if not isinstance(failure, e.EngineSocketMissingError):
            return failure
    if len(failures) == 1:
        return failures[0]
    return e.EngineSocketMissingError(
        "no container engine answers",
        why="; ".join(failure.why for failure in failures),
        fix="start Docker, set DOCKER_HOST, or let gpuenv start one: gpuenv engine up",
    )


def open_address(
    address: EngineAddress,
    *,
    transport: Callable[[str], ForwardedSocket] | None = None,
    timeout_s: float = 20,
) -> ContainerEngine:
    """Connect to one address; see :func:`connect`."""
    url, on_close, forwarded = address.url, None, None
    if url.startswith("ssh://"):
        if transport is None:
            raise e.EngineAddressError(
                f"{url} needs a forwarded socket, and this command cannot make one",
                fix="forward the remote socket yourself and give its path to --engine",
            )
        forwarded = transport(url)
        url, on_close = f"unix://{forwarded.path}", forwarded.close
    try:
        return _handshake(
            url,
            tls=address.tls,
            local=on_close is None and url.startswith("unix://"),
            on_close=on_close,
            timeout_s=timeout_s,
        )
    except BaseException as error:
        if forwarded is None:
            raise
        with contextlib.closing(forwarded):
            if isinstance(error, EngineUnavailableError):
                better = forwarded.explain(error)
                if better is not error:
                    raise better from error
            raise


def _handshake(
    url: str,
    *,
    tls: TlsFiles | None,
    local: bool,
    on_close: Callable[[], None] | None,
    timeout_s: float,
) -> ContainerEngine:
    from gpuenv.engine import docker as docker_engine
    from gpuenv.engine.transport import Transport

    if url.startswith("unix://"):
        require_socket(Path(urlsplit(url).path), timeout_s=timeout_s)
    try:
        transport = Transport(url, _ssl_context(tls))
    except OSError as exc:
        raise e.EngineTlsError(
            f"the certificates for {url} cannot be used",
            why=str(exc),
            fix="check DOCKER_CERT_PATH: it holds ca.pem, cert.pem and key.pem",
        ) from exc
    version = _first_answer(transport, "/version", timeout_s)
    spoken = _agree_on_api(version, url)
    info = _first_answer(transport, f"/v{spoken}/info", timeout_s)
    here = local and info.get("Name") == socket.gethostname()
    capabilities = docker_engine.parse_capabilities(
        version,
        info,
        local=here,
        rlimit_ceiling=docker_engine.probe_rlimit_ceiling(url) if here else None,
        cdi_files=docker_engine.probe_cdi_files(info) if here else None,
    )
    return docker_engine.DockerEngine(
        transport, api=str(spoken), on_close=on_close, capabilities=capabilities
    )


def _agree_on_api(version: Mapping[str, Any], url: str) -> EngineVersion:
    """Return the newest API version that both sides speak."""
    from gpuenv.engine.docker import NEWEST_API, OLDEST_API

    api = EngineVersion.parse(str(version["ApiVersion"]))
    if api < OLDEST_API:
        raise e.EngineTooOldError(
            f"the engine at {url} is too old",
            why=f"its API is {api}, gpuenv needs {OLDEST_API} (Docker 20.10)",
            fix="bring Docker up to date",
        )
    oldest = EngineVersion.parse(str(version.get("MinAPIVersion") or "1.12"))
    return max(min(api, NEWEST_API), oldest)


def _first_answer(transport: Transport, path: str, timeout_s: float) -> dict[str, Any]:
    from gpuenv.engine.transport import TransportError

    url = transport.base_url
    try:
        answer = transport.send("GET", path, timeout_s=timeout_s)
        answer.fetch()
    except TransportError as exc:
        raise _no_answer(exc, url, timeout_s) from exc
    text = answer.text
    if answer.status >= 400:  # noqa: PLR2004 - HTTP
        if not text.lstrip().startswith("{"):  # an engine answers in JSON, errors as well
            raise _foreign(url, text)
        raise e.EngineRequestError(f"the engine at {url} refuses to say what it is", why=text)
    try:
        data = answer.json()
    except ValueError as exc:
        raise _foreign(url, text) from exc
    if not isinstance(data, dict) or (path == "/version" and "ApiVersion" not in data):
        raise _foreign(url, text)
    return data


def _no_answer(exc: TransportError, url: str, timeout_s: float) -> EngineUnavailableError:
    if exc.kind == "tls":
        return e.EngineTlsError(
            f"no secure connection to the engine at {url}",
            why=str(exc),
            fix="check DOCKER_CERT_PATH and whether the certificate names this host",
        )
    if exc.kind == "timeout":
        return e.EngineTimeoutError(
            f"the engine at {url} does not answer",
            why=f"it took the connection and said nothing for {timeout_s:g} s",
            fix="see what it is busy with, or restart it",
        )
    if exc.kind == "foreign":
        return _foreign(url, str(exc))
    return e.EngineNotRunningError(
        f"no engine answers at {url}",
        why=str(exc),
        fix="start it, or name another one with --engine",
    )


def _foreign(url: str, text: str) -> e.NotAnEngineError:
    return e.NotAnEngineError(
        f"what answers at {url} is no container engine",
        why=f"it said {' '.join(text.split())[:120]!r}",
        fix="check the address",
    )


def require_socket(path: Path, *, timeout_s: float) -> None:
    """Connect to a Unix socket once, to learn why it cannot be used if it cannot.

    Raises:
        EngineUnavailableError: A subclass for each reason.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_s)
            probe.connect(str(path))
    except FileNotFoundError as exc:
        raise e.EngineSocketMissingError(
            "no container engine answers",
            why=f"there is no socket {path}",
            fix="start Docker, set DOCKER_HOST, or let gpuenv start one: gpuenv engine up",
        ) from exc
    except PermissionError as exc:
        raise _permission(path) from exc
    except TimeoutError as exc:
        raise e.EngineTimeoutError(
            "the container engine does not answer",
            why=f"{path} takes no connection within {timeout_s:g} s",
            fix="see what it is busy with, or restart it",
        ) from exc
    except OSError as exc:
        raise e.EngineNotRunningError(
            "the container engine does not run",
            why=f"{path} is there, but: {exc.strerror or exc}",
            fix="start it again: systemctl start docker, or gpuenv engine up",
        ) from exc


def _permission(path: Path) -> e.EnginePermissionError:
    import grp
    import pwd

    try:
        facts = path.stat()
        group = grp.getgrgid(facts.st_gid).gr_name
        members = set(grp.getgrgid(facts.st_gid).gr_mem)
    except (OSError, KeyError):
        return e.EnginePermissionError(
            "this user may not use the container engine",
            why=f"{path} is behind a folder this user cannot enter",
            fix="run with sudo, or use a rootless engine",
        )
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    if not facts.st_mode & stat.S_IWGRP:
        fix = "run with sudo, or use a rootless engine"
    elif user in members:
        fix = f"you are in group {group}, but this login is older: log in again, or newgrp {group}"
    else:
        fix = f"sudo usermod -aG {group} {user}, then log in again; or run with sudo"
    return e.EnginePermissionError(
        "this user may not use the container engine",
        why=f"{path} belongs to group {group} and {user} is not acting in it",
        fix=fix,
    )


def _ssl_context(tls: TlsFiles | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    import ssl

    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert and tls.key:
        context.load_cert_chain(tls.cert, tls.key)
    return context
