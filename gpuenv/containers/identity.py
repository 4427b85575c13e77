"""Names and labels: how gpuenv knows its own containers again.

Every container carries :data:`SESSION`; clean-up filters on that alone, so a shared engine is
safe. An image of ours carries other ``org.gpuenv.*`` labels, which its containers inherit, also
those that somebody else started: so nothing here may be read off those.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import field
from datetime import datetime, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

    from gpuenv.engine.protocol import ContainerInfo

Kind: TypeAlias = Literal["run", "jupyter", "ssh"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SESSION = "org.gpuenv.session"
NAME = "org.gpuenv.name"
KIND = "org.gpuenv.kind"
OWNER = "org.gpuenv.owner"
LOGIN = "org.gpuenv.login"
CREATED = "org.gpuenv.created"
GPUS = "org.gpuenv.gpus"
WORKSPACE = "org.gpuenv.workspace"
REQUEST = "org.gpuenv.request"
VOLUME = "org.gpuenv.volume"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,46}[a-z0-9])?")
_LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def parse_name(text: str) -> str:
    """Check the name of an environment: it becomes part of a container's name and an SSH host.

    Raises:
        ConfigurationError: It holds something else than small letters, digits, ``-``, ``_``, ``.``.
    """
    if not _NAME.fullmatch(text) or ".." in text:
        raise ConfigurationError(
            f"{text!r} is not a name for an environment",
            why="a name has 1 to 48 small letters, digits, '-', '_' or '.', and begins and ends "
            "with a letter or a digit",
            fix="--name train-resnet",
        )
    return text


def default_name(workspace: PurePath) -> str:
    """Return the name of the environment of a folder: the same each time, and no other folder's."""
    stem = re.sub(r"[^a-z0-9]+", "-", workspace.name.lower()).strip("-")[:30].strip("-")
    digest = sha256(str(workspace).encode("utf-8", "surrogateescape")).hexdigest()[:4]
    return f"{stem or 'workspace'}-{digest}"


def new_session() -> str:
    """Return an id for one launch: 64 random bits in hex."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a container is.

    Attributes:
        session: One launch; what a failed launch is cleaned up by.
        owner: The user id on the engine's host that it belongs to.
        gpus: ``all``, ``none`` or UUIDs and indexes with commas, as given to the engine.
        workspace: The folder of the host that is mounted, empty for none.
        request: What was asked for, flag → value, for the question whether a running environment
            is what a second call wants; never holds a secret.
    """

    session: str
    name: str
    kind: Kind
    owner: int
    login: str
    created: datetime
    gpus: str = "none"
    workspace: str = ""
    request: Mapping[str, str] = field(default_factory=dict)

    @property
    def container_name(self) -> str:
        """The container's name at the engine: ``gpuenv-alice-train-jupyter``."""
        who = self.login if _LOGIN.fullmatch(self.login) else str(self.owner)
        return f"gpuenv-{who}-{self.name}-{self.kind}"

    def labels(self) -> dict[str, str]:
        """Return the labels of the container."""
        return {
            SESSION: self.session,
            NAME: self.name,
            KIND: self.kind,
            OWNER: str(self.owner),
            LOGIN: self.login,
            CREATED: self.created.astimezone(timezone.utc).isoformat(timespec="seconds"),
            GPUS: self.gpus,
            WORKSPACE: self.workspace,
            REQUEST: json.dumps(dict(sorted(self.request.items())), ensure_ascii=False),
        }


def identity_of(container: ContainerInfo) -> Identity | None:
    """Read a container back; ``None`` if gpuenv did not start it.

    Labels of another gpuenv version may lack a key: what can be told without it is told.
    """
    labels = container.labels
    kind = next((kind for kind in KINDS if labels.get(KIND) == kind), None)
    if not labels.get(SESSION) or not labels.get(NAME) or kind is None:
        return None
    owner = labels.get(OWNER, "")
    try:
        created = datetime.fromisoformat(labels.get(CREATED, ""))
    except ValueError:
        created = container.created_at or datetime.fromtimestamp(0, timezone.utc)
    try:
        request = json.loads(labels.get(REQUEST, "{}"))
    except ValueError:
        request = {}
    return Identity(
        session=labels[SESSION],
        name=labels[NAME],
        kind=kind,
        owner=int(owner) if owner.isdecimal() else -1,
        login=labels.get(LOGIN, ""),
        created=created,
        gpus=labels.get(GPUS, "none"),
        workspace=labels.get(WORKSPACE, ""),
        request={str(key): str(value) for key, value in request.items()}
        if isinstance(request, dict)
        else {},
    )


def differences(asked: Mapping[str, str], running: Mapping[str, str]) -> tuple[str, ...]:
    """Say in what a running environment is not as asked.

    Only what was asked for explicitly counts, so a bare ``gpuenv jupyter`` finds whatever runs.
    """
    return tuple(
        f"--{flag} {value} is asked for; there it is {running.get(flag) or 'not set'}"
        for flag, value in sorted(asked.items())
        if running.get(flag, "") != value
    )
