"""``gpuenv jupyter``: JupyterLab for one person, found again by its name.

The token is 256 random bits. On this machine it stands in the environment's private folder, in the
container in one file that its user alone can read, and nowhere else: Jupyter's own token is off and
``gpuenv_jupyter`` compares with that file, so no argument, variable, label, log or runtime file of
Jupyter's has it.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from gpuenv.containers.errors import ContainerEndedError
from gpuenv.containers.files import new_token
from gpuenv.containers.lifecycle import (
    find_environment,
    list_environments,
    remove_environment,
    removing_on_failure,
    require_as_asked,
    select_environments,
    start_on_free_port,
    start_stopped,
)
from gpuenv.containers.mounts import WORKSPACE
from gpuenv.containers.plan import ContainerPlan, ContainerWish, LaunchFacts, Note, plan_container
from gpuenv.containers.ready import require_alive, wait_ready
from gpuenv.containers.tls import Certificate
from gpuenv.containers.users import HOME
from gpuenv.engine.errors import CommandNotFoundError, ContainerNotRunningError
from gpuenv.engine.protocol import PortBinding, PutFile
from gpuenv.errors import ConfigurationError, LaunchFailedError
from gpuenv.resources import package_dir
from gpuenv.secret import Secret
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.containers.lifecycle import Environment
    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo

CONTAINER_PORT = 8888
FIRST_PORT = 8888
FOLDER = "/etc/gpuenv/jupyter"
TOKEN_FILE = f"{FOLDER}/token"
PASSWORD_FILE = f"{FOLDER}/password"
_CERT_FILE = f"{FOLDER}/tls-cert.pem"
_KEY_FILE = f"{FOLDER}/tls-key.pem"
_SECRET_MODE = 0o400
_PROBE_TIMEOUT_S = 5.0
_OK, _FORBIDDEN = 200, 403
_NO_PROGRAM = 127
_WHAT = "JupyterLab"
_PAGE_CONFIG = json.dumps(
    {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
)

Access: TypeAlias = Literal["token", "password"]
PortHere: TypeAlias = "Callable[[int], int]"
"""From a port of the engine's host to the one of this host that leads there."""


class NotJupyterError(LaunchFailedError):
    """The image has no JupyterLab."""

    slug = "no-jupyter"


class UnsafeBindError(ConfigurationError):
    """A server that others can reach would send its token in the clear."""

    slug = "unsafe-bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterWish:
    """What is asked of the server beside its container.

    Attributes:
        secret: The token, or the password's hash.
        bind: The address of the engine's host it can be reached at.
        certificate: ``None`` speaks plain HTTP.
        idle_stop_s: Seconds without use after which it ends; 0 for never.
        hostnames: Names it may be called by, beside the loopback's.
    """

    access: Access
    secret: Secret
    bind: str = "127.0.0.1"
    certificate: Certificate | None = None
    idle_stop_s: float = 0.0
    hostnames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server answers.

    Attributes:
        host: As a browser calls it.
        connect_host: As this program reaches it, the loopback where that is possible.
        ca: PEM text of what its certificate is checked against, ``None`` for plain HTTP.
        hostname_checked: The certificate must be for the name; a self-made one is pinned instead.
    """

    host: str
    port: int
    tls: bool = False
    connect_host: str = "127.0.0.1"
    ca: str | None = None

    @property
    def url(self) -> str:
        """The server's address without a token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}/lab"

    def url_with(self, token: Secret) -> str:
        """Return the address that logs in."""
        return f"{self.url}?token={quote(token.reveal(), safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What a server says of itself.

    Attributes:
        last_activity: Of a kernel or the browser.
    """

    last_activity: datetime | None = None
    kernels: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJupyter:
    """A server that answers."""

    container: ContainerInfo
    address: Address
    access: Access
    token: Secret | None = None

    @property
    def url(self) -> str:
        """The address that a browser opens; it logs in where there is a token."""
        return self.address.url if self.token is None else self.address.url_with(self.token)

    @property
    def fingerprint(self) -> str | None:
        """SHA-256 of its certificate, ``None`` for plain HTTP."""
        if not self.address.tls or self.address.ca is None:
            return None
        return Certificate(chain=self.address.ca, key="").fingerprint


def is_loopback(address: str) -> bool:
    """Say whether only this host can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def check_bind(bind: str, *, tls: bool, insecure: bool) -> tuple[Note, ...]:
    """Refuse an address that others can reach without TLS.

    Raises:
        ConfigurationError: It is no IP address.
        UnsafeBindError: It is not the loopback, there is no TLS, and ``--insecure`` is not given.
    """
    try:
        ipaddress.ip_address(bind)
    except ValueError as exc:
        raise ConfigurationError(
            f"--bind {bind!r} is not an IP address",
            why=str(exc),
            fix="--bind 127.0.0.1, or an address of this host",
        ) from exc
    if is_loopback(bind) or tls:
        return ()
    if not insecure:
        raise UnsafeBindError(
            f"{bind} can be reached by others, and without TLS they could read the token",
            why="everything goes over the network as plain text",
            fix="add --tls self-signed; or keep 127.0.0.1 and use an SSH tunnel; --insecure if "
            "something in front of it encrypts",
        )
    return (
        Note(level="warning", text=f"{bind} without TLS: whoever hears the network has the token"),
    )


def plan_jupyter(
    wish: ContainerWish, facts: LaunchFacts, jupyter: JupyterWish, *, host_port: int
) -> ContainerPlan:
    """Decide the container of a Jupyter server; pure but for the files it reads from the package.

    Raises:
        ConfigurationError: The container would run as a user of which nothing is known.
    """
    plan = plan_container(wish, facts)
    if plan.user.uid is None:
        raise ConfigurationError(
            "--user image cannot be used here",
            why="the token must be a file of the user that the server runs as, so the user must "
            "be known before",
            fix="leave --user out, or give numbers: --user 1000:100",
        )
    return plan.adding(
        entrypoint=(),
        command=("jupyter-server", f"--config={FOLDER}/jupyter_server_config.py"),
        ports=(
            *plan.spec.ports,
            PortBinding(container_port=CONTAINER_PORT, host_port=host_port, host_ip=jupyter.bind),
        ),
        files=(*plan.spec.files, *_files(plan, jupyter, has_workspace=bool(wish.workspace))),
        notes=()
        if not jupyter.idle_stop_s
        else (Note(level="detail", text=f"stops after {jupyter.idle_stop_s:g} s without use"),),
    )


def _files(
    plan: ContainerPlan, jupyter: JupyterWish, *, has_workspace: bool
) -> tuple[PutFile, ...]:
    uid, gid = plan.user.uid or 0, plan.user.gid or 0
    settings = {
        "name": plan.identity.name,
        "port": CONTAINER_PORT,
        "root_dir": WORKSPACE if has_workspace else HOME,
        "tls": jupyter.certificate is not None,
        "secret_file": jupyter.access,
        "idle_stop_s": jupyter.idle_stop_s,
        "remote_access": not is_loopback(jupyter.bind),
        "hostnames": list(jupyter.hostnames),
    }
    inside = package_dir() / "inside"
    files = [
        PutFile(path=f"{FOLDER}/{name}", content=(inside / name).read_bytes())
        for name in ("jupyter_server_config.py", "gpuenv_jupyter.py", "login.html")
    ]
    files.append(
        PutFile(path=f"{FOLDER}/settings.json", content=json.dumps(settings, indent=1).encode())
    )
    files.append(
        PutFile(path=f"{FOLDER}/labconfig/page_config.json", content=_PAGE_CONFIG.encode())
    )
    files.append(secret_file(jupyter.access, jupyter.secret, uid=uid, gid=gid))
    if jupyter.certificate is not None:
        files += [
            PutFile(path=_CERT_FILE, content=jupyter.certificate.chain.encode()),
            PutFile(
                path=_KEY_FILE,
                content=jupyter.certificate.key.encode(),
                mode=_SECRET_MODE,
                uid=uid,
                gid=gid,
            ),
        ]
    return tuple(files)


def secret_file(access: Access, secret: Secret, *, uid: int, gid: int) -> PutFile:
    """Return the file with the token or the hash, for its user alone."""
    return PutFile(
        path=TOKEN_FILE if access == "token" else PASSWORD_FILE,
        content=secret.reveal().encode(),
        mode=_SECRET_MODE,
        uid=uid,
        gid=gid,
    )


def start_jupyter(
    engine: ContainerEngine,
    plan_for: Callable[[int], ContainerPlan],
    jupyter: JupyterWish,
    *,
    first_port: int,
    port_free: Callable[[int], bool],
    timeout_s: float,
    on_note: Callable[[Note], None],
    via: PortHere | None = None,
) -> RunningJupyter:
    """Start a server and wait until it answers with its token; else nothing of it stays.

    Args:
        plan_for: The plan with a host port in it; of one session, whatever the port.
        port_free: Whether nobody listens on a port, as far as can be told from here.
        via: Where the engine is on another host.

    Raises:
        NotJupyterError: The image has no Jupyter server.
        LaunchFailedError: In one of its kinds.
    """
    session = plan_for(first_port).identity.session
    with removing_on_failure(engine, session):
        try:
            info, _ = start_on_free_port(
                engine, plan_for, first_port=first_port, port_free=port_free, on_note=on_note
            )
            require_alive(engine, info.id, _WHAT)
            running = RunningJupyter(
                container=info,
                address=_published(
                    info,
                    chain=jupyter.certificate.chain if jupyter.certificate else None,
                    via=via,
                ),
                access=jupyter.access,
                token=jupyter.secret if jupyter.access == "token" else None,
            )
            wait_until_answers(engine, running, timeout_s=timeout_s)
        except (CommandNotFoundError, ContainerEndedError) as error:
            if error.data.get("exit_code", _NO_PROGRAM) != _NO_PROGRAM:
                raise
            raise NotJupyterError(
                "the image has no Jupyter server",
                why=error.why,
                fix="leave --image out and gpuenv builds one that has, or install jupyterlab in it",
            ) from error
    return running


def find_or_start(
    engine: ContainerEngine,
    files: EnvironmentFiles,
    *,
    name: str,
    owner: int,
    asked: Mapping[str, str],
    image_id: str | None,
    anew: bool,
    timeout_s: float,
    start: Callable[[], RunningJupyter],
    via: PortHere | None = None,
) -> tuple[RunningJupyter, bool]:
    """Return the server of an environment, and whether it was there; a stopped one goes on.

    Args:
        asked: What was asked for explicitly, which must be as it is there.
        image_id: The image that was asked for, ``None`` for whichever it has.
        anew: End and remove the one that is there.
        start: Makes a new one.
        via: Where the engine is on another host.

    Raises:
        EnvironmentDiffersError: It is there and not as asked.
        LaunchFailedError: It did not start or does not answer.
    """
    existing = find_environment(engine, name, kind="jupyter", owner=owner)
    if existing is None:
        return start(), False
    if anew or existing.cut_off:
        remove_environment(engine, existing)
        return start(), False
    require_as_asked(existing, asked, image_id=image_id)
    info = existing.container
    if not existing.running:
        info = start_stopped(engine, existing)
    running = running_jupyter(engine, files, existing, info, via=via)
    wait_until_answers(engine, running, timeout_s=timeout_s)
    return running, existing.running


def show_again(
    engine: ContainerEngine,
    files: EnvironmentFiles,
    *,
    name: str,
    owner: int,
    via: PortHere | None = None,
) -> RunningJupyter:
    """Return a server that runs, with its token.

    Raises:
        EnvironmentNotFoundError: There is none of that name.
        ContainerNotRunningError: It is stopped.
    """
    environment = _require_running(engine, name=name, owner=owner)
    return running_jupyter(engine, files, environment, environment.container, via=via)


def rotate_token(
    engine: ContainerEngine, files: EnvironmentFiles, *, name: str, owner: int
) -> None:
    """Replace the token of a running server, which takes it from its next request on.

    The old token and every login made with it are refused from then on; a notebook that is open
    keeps its connection until it is closed. The container gets the new token first: if that fails,
    the old one stays valid on both sides.

    Raises:
        ConfigurationError: It has a password instead.
    """
    environment = _require_running(engine, name=name, owner=owner)
    if _access(environment) == "password":
        raise ConfigurationError(
            f"{name} has a password and no token",
            why="it was started with --password",
            fix=f"gpuenv jupyter --name {name} --password --replace asks for a new one",
        )
    token = Secret(new_token())
    uid, _, gid = environment.container.user.partition(":")
    put = secret_file("token", token, uid=int(uid or 0), gid=int(gid or uid or 0))
    engine.put_files(environment.container.id, (put,))
    files.write(files.token_path, token.reveal() + "\n")


def _require_running(engine: ContainerEngine, *, name: str, owner: int) -> Environment:
    mine = list_environments(engine, owner=owner, kind="jupyter")
    environment = select_environments(mine, name)[0]
    if not environment.running:
        raise ContainerNotRunningError(
            f"{environment.identity.name} does not run",
            why=f"its container is {environment.container.state}",
            fix=f"gpuenv start {environment.identity.name}",
        )
    return environment


def _access(environment: Environment) -> Access:
    return "password" if environment.identity.request.get("password") == "yes" else "token"


def running_jupyter(
    engine: ContainerEngine,
    files: EnvironmentFiles,
    environment: Environment,
    info: ContainerInfo,
    *,
    via: PortHere | None = None,
) -> RunningJupyter:
    """Put together what is known of a server; a token lost here is taken from its container."""
    access = _access(environment)
    token: str | None = None
    if access == "token":
        token = files.token()
        if token is None:
            inside = engine.read_file(info.id, TOKEN_FILE) or b""
            files.write(files.token_path, inside.decode("ascii", "replace").strip() + "\n")
            token = files.token()
        if token is None:
            raise LaunchFailedError(
                f"the token of {environment.identity.name} is lost",
                why="it is neither in the state folder nor in the container",
                fix=f"gpuenv jupyter --name {environment.identity.name} --rotate makes a new one",
            )
    chain = None
    if environment.identity.request.get("tls"):
        inside = engine.read_file(info.id, _CERT_FILE) or b""
        chain = inside.decode("ascii", "replace")
    return RunningJupyter(
        container=info,
        address=_published(info, chain=chain, via=via),
        access=access,
        token=None if token is None else Secret(token),
    )


def wait_until_answers(
    engine: ContainerEngine, running: RunningJupyter, *, timeout_s: float
) -> None:
    """Wait until ``/api/status`` answers with the token, or refuses without the password.

    Raises:
        NotReadyError: It did not in time.
        ContainerEndedError: The container ended meanwhile.
    """
    expected = _OK if running.access == "token" else _FORBIDDEN

    def probe() -> str:
        try:
            code, _ = ask(running.address, "/api/status", token=running.token)
        except OSError as error:
            return f"{running.address.url}: {error}"
        except http.client.HTTPException as error:
            return f"{running.address.url}: {type(error).__name__}"
        return "" if code == expected else f"{running.address.url} answers with HTTP {code}"

    wait_ready(engine, running.container.id, probe, what=_WHAT, timeout_s=timeout_s)


def ask(
    address: Address, path: str, *, token: Secret | None, timeout_s: float = _PROBE_TIMEOUT_S
) -> tuple[int, bytes]:
    """Ask a server once; the proxies of the environment are not for it.

    A self-made certificate is its own authority: only the server that has its key passes.

    Raises:
        OSError: It does not answer, or is not the one whose certificate is known.
    """
    if address.tls:
        context = ssl.create_default_context(cadata=address.ca)
        # The certificate is known byte for byte; the name we connect by may be a tunnel's.
        context.check_hostname = False
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.connect_host, address.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(
            address.connect_host, address.port, timeout=timeout_s
        )
    with contextlib.closing(connection):
        headers = {} if token is None else {"Authorization": f"token {token.reveal()}"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def probe_status(address: Address, token: Secret | None) -> ServerStatus | None:
    """Ask a server how it is used; ``None`` where it does not answer or there is no token."""
    if token is None:
        return None
    try:
        code, body = ask(address, "/api/status", token=token, timeout_s=2.0)
        data: Any = json.loads(body) if code == _OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    return ServerStatus(
        last_activity=parse_time(str(data.get("last_activity", ""))),
        kernels=int(data.get("kernels", 0)),
        connections=int(data.get("connections", 0)),
    )


def parse_time(text: str) -> datetime | None:
    """Read a time as the server writes it: ``2026-12-01T12:00:00.123456Z``."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _published(info: ContainerInfo, *, chain: str | None, via: PortHere | None = None) -> Address:
    """Return where the server of a container that has just started is reached.

    Raises:
        LaunchFailedError: The engine does not publish it.
    """
    address = address_of(info, chain=chain, via=via)
    if address is None:
        raise LaunchFailedError(
            f"{info.name} is not reachable",
            why="the engine publishes none of its ports",
            fix="leave out --network none and --network host; or ask at the engine's log",
        )
    return address


def address_of(
    info: ContainerInfo, *, chain: str | None, via: PortHere | None = None
) -> Address | None:
    """Return where a server is published, ``None`` while it does not run.

    Args:
        via: Where the engine is on another host.
    """
    for port in info.ports:
        if port.container_port != CONTAINER_PORT:
            continue
        if via is not None:
            here = via(port.host_port)
            return Address(host="127.0.0.1", port=here, tls=chain is not None, ca=chain)
        everywhere = ipaddress.ip_address(port.host_ip or "0.0.0.0").is_unspecified  # noqa: S104
        return Address(
            host=socket.gethostname() if everywhere else port.host_ip,
            port=port.host_port,
            tls=chain is not None,
            connect_host="127.0.0.1" if everywhere else port.host_ip,
            ca=chain,
        )
    return None
