"""The private folder of one environment: what must survive a rebuild and a restart.

::

    STATE/environments/NAME[@PLACE]/        0700
        lock                                held while an environment is started or changed
        jupyter-token                       0600, 256 bit
        jupyter-password                    0600, an argon2 hash
        tls-cert.pem, tls-key.pem           0600
        ssh_host_ed25519_key[.pub]          0600, see gpuenv.ssh
        authorized_keys                     0600
        revoked_keys                        0600, fingerprints that are not let in by themselves
        id_ed25519[.pub]                    0600, for a user who has no key
        ssh_config                          0600, how ``ssh`` reaches it
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuenv.containers.errors import EnvironmentBusyError
from gpuenv.containers.identity import parse_name
from gpuenv.errors import ConfigurationError
from gpuenv.secret import Secret
from gpuenv.state import make_private_dir, state_dir, write_private_file
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_TOKEN = re.compile(r"[0-9a-f]{64}")
_OTHERS = 0o077


def new_token() -> str:
    """Return 256 random bits as 64 hexadecimal digits."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFiles:
    """Where one environment keeps its secrets on this machine.

    Attributes:
        folder: Not created until something is written.
    """

    folder: Path

    @classmethod
    def of(cls, name: str, *, environ: Mapping[str, str], place: str = "") -> EnvironmentFiles:
        """Return the files of an environment.

        Args:
            name: Its name, checked.
            environ: Where the state folder is read from.
            place: Where the engine is, empty for this machine; the same name elsewhere is another
                environment.
        """
        parse_name(name)
        suffix = f"@{re.sub(r'[^A-Za-z0-9_.-]', '_', place)}" if place else ""
        return cls(folder=state_dir(environ) / "environments" / f"{name}{suffix}")

    @property
    def token_path(self) -> Path:
        """The file with Jupyter's token."""
        return self.folder / "jupyter-token"

    @property
    def password_path(self) -> Path:
        """The file with the hash of Jupyter's password."""
        return self.folder / "jupyter-password"

    @property
    def certificate_path(self) -> Path:
        """The file with the TLS certificate made for this environment."""
        return self.folder / "tls-cert.pem"

    @property
    def certificate_key_path(self) -> Path:
        """The file with that certificate's key."""
        return self.folder / "tls-key.pem"

    @property
    def host_key_path(self) -> Path:
        """The file with the private SSH host key; the public one stands beside it as ``.pub``."""
        return self.folder / "ssh_host_ed25519_key"

    @property
    def authorized_keys_path(self) -> Path:
        """The file with the public keys that may log in."""
        return self.folder / "authorized_keys"

    @property
    def revoked_keys_path(self) -> Path:
        """The file with the fingerprints of keys that were revoked."""
        return self.folder / "revoked_keys"

    @property
    def client_key_path(self) -> Path:
        """The file with the private key made for a user who has none."""
        return self.folder / "id_ed25519"

    @property
    def ssh_config_path(self) -> Path:
        """The file that tells ``ssh`` how the environment is reached."""
        return self.folder / "ssh_config"

    def read(self, path: Path) -> str | None:
        """Return the text of one of the files, ``None`` if it is not there.

        A file that others may read is closed to them first, for whoever copied it about.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        try:
            status = path.stat()
            if stat.S_ISFIFO(status.st_mode):  # nobody would ever write to it
                raise ConfigurationError(
                    f"cannot read {path}",
                    why="it is a pipe and no file",
                    fix="remove it",
                )
            if status.st_mode & _OTHERS:
                path.chmod(0o600)
            return path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as exc:
            raise ConfigurationError(
                f"cannot read {path}",
                why=f"it holds something else than text: {exc.reason} at byte {exc.start}",
                fix="put back what was there, or remove it",
            ) from exc
        except OSError as exc:
            raise ConfigurationError(
                f"cannot read {path}",
                why=exc.strerror or str(exc),
                fix="give the file back to yourself, or remove it",
            ) from exc

    def write(self, path: Path, text: str) -> None:
        """Write one of the files, private and whole or not at all.

        Raises:
            ConfigurationError: The folder cannot be written.
        """
        try:
            write_private_file(path, text.encode("utf-8"))
        except OSError as exc:
            raise ConfigurationError(
                f"cannot write {path}",
                why=exc.strerror or str(exc),
                fix="make room or give write permission; GPUENV_STATE_DIR names another folder",
            ) from exc

    def token(self) -> str | None:
        """Return the token, ``None`` if there is none yet or what is there is none."""
        text = (self.read(self.token_path) or "").strip()
        return text if _TOKEN.fullmatch(text) else None

    def secret_token(self) -> Secret | None:
        """Return the token so that it does not show by accident."""
        token = self.token()
        return None if token is None else Secret(token)

    def make_token(self) -> str:
        """Return the token, made now if there is none yet; it is never empty."""
        return self.token() or self.renew_token()

    def renew_token(self) -> str:
        """Replace the token and return the new one."""
        token = new_token()
        self.write(self.token_path, token + "\n")
        return token

    def forget(self) -> None:
        """Remove the folder and everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        """Hold the environment against other gpuenv commands of this user.

        Args:
            wait: Wait for the other one to end; else say that it is busy.

        Raises:
            EnvironmentBusyError: Another command holds it.
        """
        try:
            make_private_dir(self.folder.parent)
            make_private_dir(self.folder)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigurationError(
                f"cannot use {self.folder}",
                why=exc.strerror or str(exc),
                fix="make room or give write permission; GPUENV_STATE_DIR names another folder",
            ) from exc
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as exc:
                raise EnvironmentBusyError(
                    f"another gpuenv command is working on {self.folder.name}",
                    why=f"{self.folder / 'lock'} is held",
                    fix="wait for it to end and try again",
                ) from exc
            yield
        finally:
            os.close(handle)
