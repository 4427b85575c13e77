"""``gpuenv ssh``: an environment that is reached by SSH, with a host key that is known before.

The host key is made here, once per environment, and kept: a rebuild, a restart or another port
changes nothing for the client. Nobody but the holders of the keys in ``authorized_keys`` gets in,
and that file is root's, so that what runs inside cannot let in others.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from gpuenv.containers.errors import ContainerEndedError
from gpuenv.containers.identity import WORKSPACE as WORKSPACE_LABEL
from gpuenv.containers.lifecycle import (
    find_environment,
    list_environments,
    remove_environment,
    removing_on_failure,
    require_as_asked,
    select_environments,
    start_on_free_port,
)
from gpuenv.containers.mounts import WORKSPACE
from gpuenv.containers.plan import ContainerPlan, ContainerWish, LaunchFacts, Note, plan_container
from gpuenv.containers.ready import wait_ready
from gpuenv.engine.errors import CommandNotFoundError, ContainerNotRunningError, PortTakenError
from gpuenv.engine.protocol import PortBinding, PutFile
from gpuenv.errors import ConfigurationError, LaunchFailedError
from gpuenv.ssh.errors import NoSharedExchangeError, NoSshServerError
from gpuenv.ssh.host_key import connect_tcp, probe_banner, probe_host_key
from gpuenv.ssh.keys import (
    KeyPair,
    PublicKey,
    SshKeyError,
    load_key,
    make_key,
    parse_public_keys,
)
from gpuenv.ssh.server import (
    AUTHORIZED_KEYS_FILE,
    CONFIG_FILE,
    CONTAINER_PORT,
    FOLDER,
    HOST_KEY_FILE,
    render_sshd_config,
)
from gpuenv.values import dataclass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.containers.lifecycle import Environment
    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo

FIRST_PORT = 2222
SSHD = "/usr/sbin/sshd"
XAUTH = "/usr/bin/xauth"
_PROFILE_FILE = "/etc/profile.d/gpuenv.sh"
_NO_PROGRAM = 127
# What sshd needs as uid 0: its child without rights, in an empty folder, speaks to the network, and
# a login with a terminal is reported to the kernel's audit or ends.
_ROOT_CAPABILITIES = ("AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshWish:
    """What is asked of the server beside its container.

    Attributes:
        host_key: Who the environment is.
        authorized: Who may come in.
        agent_forwarding: The client's agent may be used from inside.
        x11_forwarding: Windows from inside may open at the client's.
        post_quantum_only: Clients without a post-quantum key exchange are refused.
    """

    host_key: KeyPair
    authorized: tuple[PublicKey, ...]
    agent_forwarding: bool = False
    x11_forwarding: bool = False
    post_quantum_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSsh:
    """A server that answers.

    Attributes:
        host: The address of its port on the engine's host.
        proved: It has proved to hold the host key; else that is left to a client that follows.
    """

    container: ContainerInfo
    host: str
    port: int
    host_key: PublicKey
    proved: bool = False

    @property
    def workdir(self) -> str:
        """The folder that a session begins in, empty for the home."""
        return WORKSPACE if self.container.labels.get(WORKSPACE_LABEL) else ""


# --- keys of an environment ----------------------------------------------------------------------


def make_host_key(files: EnvironmentFiles, name: str) -> KeyPair:
    """Return the host key of an environment, made now if there is none yet.

    Raises:
        SshKeyError: The file is there and holds no key; it is not replaced, since clients know it.
    """
    return _make_key(files, files.host_key_path, f"gpuenv-{name}")


def make_client_key(files: EnvironmentFiles, name: str) -> KeyPair:
    """Return the key that gpuenv keeps for a user who has none, made now if need be."""
    return _make_key(files, files.client_key_path, f"gpuenv client of {name}")


def _make_key(files: EnvironmentFiles, path: Path, comment: str) -> KeyPair:
    text = files.read(path)
    if text is not None:
        return load_key(text, origin=str(path))
    pair = make_key(comment)
    files.write(path, pair.private.reveal())
    files.write(path.with_name(path.name + ".pub"), pair.public.line + "\n")
    return pair


def authorized_keys(files: EnvironmentFiles) -> tuple[PublicKey, ...]:
    """Return the keys that may log in.

    Raises:
        SshKeyError: Somebody has changed the file into something else.
    """
    path = files.authorized_keys_path
    return parse_public_keys(files.read(path) or "", origin=str(path))


def revoked_keys(files: EnvironmentFiles) -> frozenset[str]:
    """Return the fingerprints of keys that only ``--add-key`` lets in again."""
    return frozenset((files.read(files.revoked_keys_path) or "").split())


def with_keys(
    known: tuple[PublicKey, ...], more: Iterable[PublicKey], *, revoked: frozenset[str]
) -> tuple[PublicKey, ...]:
    """Return keys with others added that are neither there nor revoked; pure."""
    kept = {key.identity: key for key in known}
    for key in more:
        if key.identity not in kept and key.fingerprint not in revoked:
            kept[key.identity] = key
    return tuple(kept.values())


def without_keys(known: tuple[PublicKey, ...], word: str) -> tuple[PublicKey, ...]:
    """Return keys without those that a user means by a word; pure.

    Args:
        word: A fingerprint, a comment, or the key itself as it stands in its file.

    Raises:
        SshKeyError: None is meant.
    """
    kept = tuple(
        key
        for key in known
        if not word
        or (
            word not in {key.fingerprint, key.comment, key.blob}
            and word.split(None, 2)[:2] != [key.type, key.blob]
        )
    )
    if len(kept) == len(known):
        raise SshKeyError(
            f"no key {word!r} may log in",
            why=", ".join(key.fingerprint for key in known) or "there is none at all",
            fix="gpuenv ssh NAME --list-keys shows them; give a fingerprint or a comment",
        )
    return kept


def authorize(files: EnvironmentFiles, keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """Let keys in, revoked ones too, and return all that may log in."""
    more = tuple(keys)
    revoked = revoked_keys(files) - {key.fingerprint for key in more}
    everybody = with_keys(authorized_keys(files), more, revoked=frozenset())
    _keep(files, everybody, revoked)
    return everybody


def revoke(files: EnvironmentFiles, word: str) -> tuple[PublicKey, ...]:
    """Let a key in no longer, and return the ones that still may log in.

    Raises:
        SshKeyError: No such key may log in.
    """
    known = authorized_keys(files)
    kept = without_keys(known, word)
    gone = {key.fingerprint for key in known} - {key.fingerprint for key in kept}
    _keep(files, kept, revoked_keys(files) | gone)
    return kept


def admit(files: EnvironmentFiles, mine: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """Add the caller's own keys of today, but no revoked one, and return all that may log in."""
    known = authorized_keys(files)
    everybody = with_keys(known, mine, revoked=revoked_keys(files))
    if everybody != known:
        _keep(files, everybody, revoked_keys(files))
    return everybody


def _keep(
    files: EnvironmentFiles, authorized: tuple[PublicKey, ...], revoked: frozenset[str]
) -> None:
    files.write(files.authorized_keys_path, _lines(key.line for key in authorized))
    files.write(files.revoked_keys_path, _lines(sorted(revoked)))


def put_keys(engine: ContainerEngine, container: str, keys: tuple[PublicKey, ...]) -> None:
    """Give a container its list of keys; the server reads it at each login."""
    engine.put_files(container, (_authorized_file(keys),))


def _authorized_file(keys: tuple[PublicKey, ...]) -> PutFile:
    text = _lines(key.line for key in keys)
    return PutFile(path=AUTHORIZED_KEYS_FILE, content=text.encode(), mode=0o444)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# --- the plan ------------------------------------------------------------------------------------


def plan_ssh(
    wish: ContainerWish, facts: LaunchFacts, ssh: SshWish, *, host_port: int
) -> ContainerPlan:
    """Decide the container of an SSH server; pure.

    Raises:
        ConfigurationError: The container would run as a user of which nothing is known.
    """
    plan = plan_container(wish, facts)
    if plan.user.uid is None:
        raise ConfigurationError(
            "--user image cannot be used here",
            why="the host key must be a file of the user that the server runs as, so the user must "
            "be known before",
            fix="leave --user out, or give numbers: --user 1000:100",
        )
    as_root = plan.user.uid == 0
    env = {**facts.image.env, **plan.spec.env}
    config = render_sshd_config(
        env,
        as_root=as_root,
        agent_forwarding=ssh.agent_forwarding,
        x11_forwarding=ssh.x11_forwarding,
        post_quantum_only=ssh.post_quantum_only,
    )
    files = [
        PutFile(path=FOLDER, content=None, mode=0o755),
        PutFile(path=CONFIG_FILE, content=config.encode("utf-8", "surrogateescape"), mode=0o444),
        PutFile(
            path=HOST_KEY_FILE,
            content=ssh.host_key.private.reveal().encode(),
            mode=0o400,
            uid=plan.user.uid,
            gid=plan.user.gid or 0,
        ),
        _authorized_file(ssh.authorized),
        PutFile(path="/run/sshd", content=None, mode=0o755),
    ]
    profile = _profile(env.get("PATH", ""), WORKSPACE if wish.workspace is not None else "")
    files.append(PutFile(path=_PROFILE_FILE, content=profile.encode("utf-8", "surrogateescape")))
    return plan.adding(
        entrypoint=(),
        command=(SSHD, "-D", "-e", "-f", CONFIG_FILE),
        ports=(
            *plan.spec.ports,
            PortBinding(container_port=CONTAINER_PORT, host_port=host_port, host_ip="127.0.0.1"),
        ),
        cap_add=tuple(dict.fromkeys((*plan.spec.cap_add, *_ROOT_CAPABILITIES)))
        if as_root
        else plan.spec.cap_add,
        files=(*plan.spec.files, *files),
        notes=(
            Note(
                level="detail",
                text="sshd as uid 0 keeps the capabilities SETUID, SETGID, SYS_CHROOT and "
                "AUDIT_WRITE, without which nobody can log in",
            ),
        )
        if as_root
        else (),
    )


def _profile(path: str, workdir: str) -> str:
    """Return what a login shell does: take the image's ``PATH`` and go where the work is."""
    lines = []
    if path:
        lines += ["# /etc/profile has just replaced the image's own.", f"PATH={shlex.quote(path)}"]
    if workdir:
        lines.append(f'if [ -n "$SSH_CONNECTION" ] && [ "$PWD" = "$HOME" ]; then cd {workdir}; fi')
    return "".join(f"{line}\n" for line in lines)


# --- acting --------------------------------------------------------------------------------------


def start_ssh(
    engine: ContainerEngine,
    plan_for: Callable[[int], ContainerPlan],
    ssh: SshWish,
    *,
    first_port: int,
    port_free: Callable[[int], bool],
    timeout_s: float,
    on_note: Callable[[Note], None],
    ask: bool = True,
    reach: Callable[[str, int], socket.socket] = connect_tcp,
) -> RunningSsh:
    """Start a server and wait until it answers; else nothing of it stays.

    Args:
        plan_for: The plan with a host port in it; of one session, whatever the port.
        port_free: Whether nobody listens on a port, as far as can be told from here.
        ask: As in :func:`find_or_start`.
        reach: Opens a connection to a port of the engine's host.

    Raises:
        NoSshServerError: The image has no SSH server.
        LaunchFailedError: In one of its kinds.
    """
    session = plan_for(first_port).identity.session
    if ask:  # the engine is waited for meanwhile, and this takes as long as a start
        Thread(target=import_module, args=("paramiko",), daemon=True).start()
    with removing_on_failure(engine, session):
        try:
            info, _ = start_on_free_port(
                engine,
                plan_for,
                first_port=first_port,
                port_free=port_free,
                on_note=_quiet(on_note),
            )
            running = _published(info, ssh.host_key.public)
            running = wait_until_answers(engine, running, timeout_s=timeout_s, ask=ask, reach=reach)
        except (CommandNotFoundError, ContainerEndedError) as error:
            if error.data.get("exit_code", _NO_PROGRAM) != _NO_PROGRAM:
                raise
            raise NoSshServerError(
                "the image has no SSH server",
                why=error.why,
                fix="leave --image out and gpuenv builds one that has, or install openssh-server "
                "in it",
            ) from error
    return running


def _quiet(on_note: Callable[[Note], None]) -> Callable[[Note], None]:
    """Pass notes on, but not which port it became: nobody types it."""

    def told(note: Note) -> None:
        taken = note.text.startswith("port ") and " is taken" in note.text
        on_note(Note(level="detail", text=note.text) if taken else note)

    return told


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
    mine: tuple[PublicKey, ...],
    start: Callable[[], RunningSsh],
    ask: bool = True,
    reach: Callable[[str, int], socket.socket] = connect_tcp,
) -> tuple[RunningSsh, bool]:
    """Return the server of an environment, and whether it was there; a stopped one goes on.

    Args:
        asked: What was asked for explicitly, which must be as it is there.
        image_id: The image that was asked for, ``None`` for whichever it has.
        anew: End and remove the one that is there.
        mine: The caller's keys, which are let in if they were not yet.
        start: Makes a new one.
        ask: Ask who it is; not needed where a client follows that does so itself.

    Raises:
        EnvironmentDiffersError: It is there and not as asked.
        LaunchFailedError: It did not start or does not answer.
    """
    existing = find_environment(engine, name, kind="ssh", owner=owner)
    if existing is None:
        return start(), False
    if anew or existing.cut_off:
        remove_environment(engine, existing)
        return start(), False
    require_as_asked(existing, asked, image_id=image_id)
    info = _started(engine, existing)
    before = authorized_keys(files)
    everybody = admit(files, mine)
    if everybody != before:
        put_keys(engine, info.id, everybody)
    running = _published(info, known_host_key(engine, files, existing))
    if ask or not existing.running:
        running = wait_until_answers(engine, running, timeout_s=timeout_s, ask=ask, reach=reach)
    return running, existing.running


def _started(engine: ContainerEngine, existing: Environment) -> ContainerInfo:
    if existing.running:
        return existing.container
    try:
        return engine.start(existing.container.id)
    except PortTakenError as taken:
        name = existing.identity.name
        raise PortTakenError(
            f"{name} cannot start: its port is in use by something else now",
            why=taken.why,
            fix=f"end what has the port, or gpuenv ssh {name} --replace makes the environment anew "
            "on a free one",
        ) from taken


def known_host_key(
    engine: ContainerEngine, files: EnvironmentFiles, environment: Environment
) -> PublicKey:
    """Return the public host key of an environment; one lost here is taken from its container.

    By way of the engine, which is trusted with the container anyway, and not from the server.
    """
    text = files.read(files.host_key_path)
    if text is None:
        inside = engine.read_file(environment.container.id, HOST_KEY_FILE)
        if inside is None:
            raise LaunchFailedError(
                f"the host key of {environment.identity.name} is lost",
                why="it is neither in the state folder nor in the container",
                fix=f"gpuenv ssh {environment.identity.name} --replace makes the environment anew",
            )
        pair = load_key(inside.decode("ascii", "replace"), origin="the container's host key")
        files.write(files.host_key_path, pair.private.reveal())
        return pair.public
    return load_key(text, origin=str(files.host_key_path)).public


def require_running(engine: ContainerEngine, *, name: str, owner: int) -> Environment:
    """Return the environment of a name, which must run.

    Raises:
        EnvironmentNotFoundError: There is none of that name.
        ContainerNotRunningError: It is stopped.
    """
    mine = list_environments(engine, owner=owner, kind="ssh")
    environment = select_environments(mine, name)[0]
    if not environment.running:
        raise ContainerNotRunningError(
            f"{environment.identity.name} does not run",
            why=f"its container is {environment.container.state}",
            fix=f"docker unpause {environment.container.name}"
            if environment.container.state == "paused"
            else f"gpuenv start {environment.identity.name}",
        )
    return environment


def forwards_windows(engine: ContainerEngine, container: str) -> bool:
    """Say whether the image has what sshd forwards windows by."""
    return engine.read_file(container, XAUTH) is not None


def _published(info: ContainerInfo, host_key: PublicKey) -> RunningSsh:
    """Return where the server of a container that runs is reached.

    Raises:
        LaunchFailedError: The engine does not publish it.
    """
    for port in info.ports:
        if port.container_port == CONTAINER_PORT:
            host = port.host_ip if port.host_ip not in {"", "0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104
            return RunningSsh(container=info, host=host, port=port.host_port, host_key=host_key)
    raise LaunchFailedError(
        f"{info.name} is not reachable",
        why="the engine publishes none of its ports",
        fix="leave out --network none and --network host; or ask at the engine's log",
    )


def wait_until_answers(
    engine: ContainerEngine,
    running: RunningSsh,
    *,
    timeout_s: float,
    ask: bool = True,
    reach: Callable[[str, int], socket.socket] = connect_tcp,
) -> RunningSsh:
    """Wait until the server answers.

    Args:
        ask: And has proved to hold the host key, if paramiko can exchange keys with it at all.

    Raises:
        HostKeyChangedError: What answers holds another one.
        NotReadyError: It did not in time.
        ContainerEndedError: The container ended meanwhile.
    """

    def connect() -> socket.socket:
        return reach(running.host, running.port)

    proved = ask

    def probe() -> str:
        nonlocal proved
        try:
            return probe_host_key(connect, running.host_key) if proved else probe_banner(connect)
        except NoSharedExchangeError:
            proved = False
            return ""

    wait_ready(engine, running.container.id, probe, what="the SSH server", timeout_s=timeout_s)
    return replace(running, proved=proved)
