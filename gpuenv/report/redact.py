"""Take out of a report what names a person, a machine or a secret.

A report is made to be pasted into a bug tracker, so this is on by default. What must go is found
in three ways: *learnt* (the host name, the user, the serial numbers that stand in the facts),
*by shape* (addresses, tokens, UUIDs), and *by name* (an environment variable is shown only when
its name is on the list of those that matter for GPU work; nobody can list all that are secret).

Two lines that speak of one thing still can be linked: addresses and serial numbers are numbered in
the order they appear, UUIDs become a short hash that is the same in every report. Only values with
enough entropy are hashed; a hash of an address or a host name could be found by trying all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import re
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

HIDDEN = "<redacted>"
_SHORTEST_TOKEN = 12  # characters of the shortest shape below that is letters and digits only

ENV_PREFIXES = (
    "CUBLAS_", "CUDA", "CUDNN_", "DOCKER_HOST_KIND", "GLOO_", "GOMP_", "KINETO_", "KMP_", "MKL_",
    "NCCL_", "NPROC", "NUMEXPR_", "NVIDIA_", "NVTE_", "OMP_", "OMPI_COMM_WORLD_", "OPENBLAS_",
    "PYTORCH_", "TORCH", "TRITON_", "UCX_", "XLA_",
)  # fmt: skip
"""Environment variables shown by what their names begin with."""

ENV_NAMES = frozenset({
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "COLUMNS", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    "DOCKER_HOST", "GPUS", "GGML_CUDA_P2P", "HOME", "IFS", "IMG", "IMAGE", "LANG", "LC_ALL",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOGNAME", "MASTER_ADDR",
    "MASTER_PORT", "NAME", "NO_COLOR", "PATH", "PWD", "PYTHONHOME", "PYTHONNOUSERSITE",
    "PYTHONPATH", "RANK", "SHELL", "SHM_SIZE", "TERM", "TMP", "TEMP", "TMPDIR", "UID", "GID",
    "USER", "VIRTUAL_ENV", "WORLD_SIZE", "WSL_DISTRO_NAME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
})  # fmt: skip
"""Environment variables shown by their whole names."""

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(?:^|_)(?:KEY|PAT|AUTH|COOKIE|SAS|DSN)(?:_|$)|APIKEY",
    re.IGNORECASE,
)

_PUBLIC_DOMAINS = (
    "anaconda.org", "conda.io", "debian.org", "docker.com", "docker.io", "ghcr.io", "github.com",
    "githubusercontent.com", "gcr.io", "gitlab.com", "huggingface.co", "kernel.org",
    "mcr.microsoft.com", "microsoft.com", "nvcr.io", "nvidia.com", "pkg.dev", "public.ecr.aws",
    "pypi.org", "python.org", "pythonhosted.org", "pytorch.org", "quay.io", "readthedocs.io",
    "ubuntu.com", "example.com", "podman.io", "kubernetes.io", "schema.org", "w3.org",
    "json-schema.org",
)  # fmt: skip

_COMMON_ACCOUNTS = frozenset({
    "admin", "administrator", "app", "centos", "coder", "cuda", "debian", "dev", "devuser",
    "docker", "ec2-user", "gpu", "jovyan", "localhost", "mambauser", "nobody", "nvidia", "python",
    "root", "runner", "system", "test", "torch", "ubuntu", "user", "users", "vscode", "worker",
    "workspace", "host", "none", "unknown", "container", "image", "linux", "default",
})  # fmt: skip
"""Account and host names that thousands of machines share: they tell nothing, and as words of the
report's own language they must stay readable."""

_HOST_KEYS = frozenset({"hostname", "host_name", "nodename", "node_name", "node", "fqdn", "domain"})
_USER_KEYS = frozenset({"user", "username", "user_name", "login", "logname", "owner", "real_name"})
_HOME_KEYS = frozenset({"home", "home_dir", "homedir"})
_SERIAL_KEYS = re.compile(
    r"(?:^|_)(?:serial|serials|serial_number|board_serial|chassis_serial|machine_id|boot_id|"
    r"product_uuid|node_guid|sys_image_guid|port_guid)$"
)
_ENV_KEYS = frozenset({"env", "environ", "environment", "environment_variables", "variables"})
_DIST_KEYS = frozenset({"dists", "distributions", "packages", "wheels", "installed"})

_VERBATIM_FIELDS = frozenset({
    "id", "status", "reason", "blocked_by", "side", "confidence", "schema_version", "level",
})  # fmt: skip
"""Fields of our own vocabulary: closed sets and ids, never text from outside."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{1,20})://([^\s'\"<>`\\)\]}]+)")
_AUTH_HEADER = re.compile(
    r"\b(authorization\s*[:=]\s*)(?:(?:bearer|basic|token|digest)\s+)?\S+", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|"
    r"sk-[A-Za-z0-9_-]{12,}|xox[abprs]-[\w-]{8,}|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{20,}|"
    r"nvapi-[\w-]{8,}|npm_[A-Za-z0-9]{12,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{8,}|wandb_v1_\w{8,}|"
    r"dop_v1_[a-f0-9]{16,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"
    r")"
)
_OPTION_SECRET = re.compile(
    r"(--?[A-Za-z-]*(?:token|password|passwd|secret|api-?key|credential)[A-Za-z-]*(?:[ =]))\S+",
    re.IGNORECASE,
)
_WORD_SECRET = re.compile(
    r"(?<![A-Za-z0-9_])([\"']?(?:[A-Za-z0-9]+[_-])*(?:token|password|passwd|secret|api_?key|"
    r"access_?key)[\"']?\s*[:=]\s*)([\"']?)(?!<)[^\s\"',;&]{3,}",
    re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"(?<![A-Za-z0-9_?&.$%-])([A-Z_][A-Z0-9_]{1,})=(\"[^\"\n]*\"|'[^'\n]*'|[^\s'\"]+)"
)
_SERIAL_WORD = re.compile(
    r"\b(serial(?:[ _]?(?:number|num|no\.?))?\s*[:=#]?\s*)"
    r"(?=[A-Z0-9-]*\d)([A-Z0-9][A-Z0-9-]{5,})\b",
    re.IGNORECASE,
)
_SYSLOG_HOST = re.compile(r"(?m)^(\w{3} [ \d]\d \d\d:\d\d:\d\d )(\S+)(?= \S+:)")
_EMAIL = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
    r"\.(?!service\b|socket\b|timer\b|target\b|mount\b)[A-Za-z]{2,}(?![\w-])"
)
_LOCAL_HOST = re.compile(
    r"(?<![\w.-])(?:[A-Za-z0-9-]+\.)+(?:corp|home|internal|intra|intranet|lan|local|localdomain)"
    r"(?![\w-])"
)
_HOME_PATH = re.compile(r"(/(?:home|Users|export/home|data/home|nfs/home)/)([^/\s:'\",;)\]}>]+)")
_WINDOWS_HOME = re.compile(r"([A-Za-z]:\\Users\\|/mnt/[a-z]/Users/)([^\\/\s:'\",;]+)")
_UUID = re.compile(
    r"(?<![0-9A-Za-z])((?:MIG-GPU-|MIG-|GPU-)?)"
    r"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"
    r"(?![0-9A-Za-z])"
)
_SHORT_UUID = re.compile(r"(?<![0-9A-Za-z])((?:MIG|GPU)-)([0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*)\b")
_GUID = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}(?![0-9A-Fa-f:])")
_MAC = re.compile(
    r"(?<![0-9A-Fa-f:-])(?:[0-9a-fA-F]{2}:){5}(?:[0-9a-fA-F]{2}:){0,14}[0-9a-fA-F]{2}"
    r"(?![0-9A-Fa-f:])"
    r"|(?<![0-9A-Fa-f:-])(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}(?![0-9A-Fa-f-])"
)
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:)[0-9A-Fa-f:.]{2,}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_VERSION_BEFORE = re.compile(
    r"(?:[=<>~!]=|\bv|version|cu(?:dnn|blas|fft|rand|solver|sparse|file|pti)\S*|-cu\d+)[\s(:\"']*$",
    re.IGNORECASE,
)


def env_is_shown(name: str) -> bool:
    """Say whether the value of an environment variable may stand in a report."""
    if _SECRET_NAME.search(name):
        return False
    return name in ENV_NAMES or name.startswith(ENV_PREFIXES)


def _short_hash(text: str) -> str:
    return hashlib.sha256(b"gpuenv:" + text.lower().encode()).hexdigest()[:8]


def _whole_word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_]){re.escape(text)}(?![A-Za-z0-9_])", re.IGNORECASE)


class Redactor:
    """Replaces private values, the same value by the same word, all through one report.

    Args:
        hosts: Names of the machine, short and full.
        users: Account names.
        homes: Home folders.
    """

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        homes: Iterable[str] = (),
    ) -> None:
        self._done: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._alone: dict[str, str] = {}
        self._numbers: dict[str, dict[str, str]] = {}
        self._versions: set[str] = set()
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        for host in hosts:
            self._learn_host(host)
        for user in users:
            self._learn_name(user, "<user>")
        for home in homes:
            self._learn_home(home)
        self._rebuild()

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Take note of the private values that stand in facts, before any text is redacted."""
        self._learn_from(facts, path=())
        self._rebuild()

    def apply(self, value: T) -> T:
        """Return a copy of a JSON-ready value or dataclass with all its texts redacted."""
        return self._walk(value, key="")  # type: ignore[no-any-return]

    def text(self, text: str) -> str:
        """Return one text without what is private in it."""
        if not text or text in self._alone:
            return self._alone.get(text, text)
        clean = self._done.get(text)
        if clean is None:
            clean = self._done[text] = self._redact(text)
        return clean

    def _redact(self, text: str) -> str:
        if text.isalnum() and len(text) < _SHORTEST_TOKEN:
            return self._named(text)  # no address, assignment or token is as plain as that
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        text = _URL.sub(self._url, text)
        text = _AUTH_HEADER.sub(rf"\1{HIDDEN}", text)
        text = _BEARER.sub(rf"\1{HIDDEN}", text)
        text = _TOKEN.sub(HIDDEN, text)
        text = _OPTION_SECRET.sub(rf"\1{HIDDEN}", text)
        text = _ASSIGNMENT.sub(self._assignment, text)
        text = _WORD_SECRET.sub(rf"\1\2{HIDDEN}", text)
        text = _EMAIL.sub("<email>", text)
        text = self._named(text)
        text = _SYSLOG_HOST.sub(r"\1<host>", text)
        text = _LOCAL_HOST.sub("<host>", text)
        text = _SERIAL_WORD.sub(lambda match: match[1] + self._numbered("serial", match[2]), text)
        text = _HOME_PATH.sub(self._home, text)
        text = _WINDOWS_HOME.sub(self._home, text)
        text = _UUID.sub(self._uuid, text)
        text = _SHORT_UUID.sub(self._uuid, text)
        text = _MAC.sub(lambda match: self._numbered("mac", match[0].lower()), text)
        text = _GUID.sub(lambda match: self._numbered("guid", match[0].lower()), text)
        text = _IPV6.sub(self._ipv6, text)
        return _IPV4.sub(self._ipv4, text)

    def _named(self, text: str) -> str:
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text

    # What is learnt from facts.

    def _learn_from(self, value: Any, *, path: tuple[str, ...]) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for item in dataclasses.fields(value):
                self._learn_from(getattr(value, item.name), path=(*path, item.name))
        elif isinstance(value, dict) or hasattr(value, "items"):
            for key, inner in value.items():
                self._learn_from(inner, path=(*path, str(key)))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._learn_from(inner, path=path)
        elif isinstance(value, str) and value and path:
            self._learn_value(path, value)
        elif isinstance(value, int) and path and _SERIAL_KEYS.search(path[-1].lower()):
            self._learn_serial(str(value))

    def _learn_value(self, path: tuple[str, ...], value: str) -> None:
        key = path[-1].lower()
        if len(path) > 1 and path[-2].lower() in _ENV_KEYS:
            self._learn_environment(path[-1], value)
        elif key == "name" and "host.user" in path:
            self._learn_name(value, "<user>")
        elif key == "path" and path[-2:] == ("home", "path"):
            self._learn_home(value)
        elif key in _HOST_KEYS:
            self._learn_host(value)
        elif key in _USER_KEYS:
            self._learn_name(value, "<user>")
        elif key in _HOME_KEYS:
            self._learn_home(value)
        elif _SERIAL_KEYS.search(key):
            self._learn_serial(value)
        elif key == "target" and "/" in value and not value.startswith("/"):
            self._learn_registry(value)
        elif "version" in key or key.startswith("nvidia-") or _DIST_KEYS & set(path):
            self._versions.update(_IPV4.findall(value))

    def _learn_environment(self, name: str, value: str) -> None:
        if name in {"USER", "LOGNAME", "USERNAME"}:
            self._learn_name(value, "<user>")
        elif name in {"HOSTNAME", "HOST"}:
            self._learn_host(value)
        elif name == "HOME":
            self._learn_home(value)

    def _learn_host(self, host: str) -> None:
        self._learn_name(host, "<host>")
        short, dot, _ = host.partition(".")
        if dot and not short.isdigit():
            self._learn_name(short, "<host>")

    def _learn_name(self, name: str, replacement: str) -> None:
        if not name or name.lower() in _COMMON_ACCOUNTS:
            return
        minimum = 3  # a shorter one would eat the text; it goes where it stands alone
        if len(name) >= minimum and not name.isdigit():
            self._known.setdefault(name, replacement)
        else:
            self._alone[name] = replacement

    def _learn_home(self, home: str) -> None:
        home = home.rstrip("/")
        parts = home.split("/")
        if any(parts[:-1]) and parts[1] not in {"proc", "tmp", "var", "dev"}:
            self._known.setdefault(home, "~")
            self._learn_name(home.rsplit("/", 1)[1], "<user>")

    def _learn_serial(self, serial: str) -> None:
        minimum = 4
        if len(serial) >= minimum and serial.strip("0"):
            self._known.setdefault(serial, self._numbered("serial", serial))

    def _learn_registry(self, image_ref: str) -> None:
        host = image_ref.split("/", 1)[0]
        name = host.split(":", 1)[0]
        if ("." in name or ":" in host) and name != "localhost" and not _is_public(name):
            self._known.setdefault(host, "<registry>")

    def _rebuild(self) -> None:
        longest_first = sorted(self._known.items(), key=lambda item: (-len(item[0]), item[0]))
        self._done.clear()
        self._patterns = [(_whole_word(text), word) for text, word in longest_first]

    # How values are walked.

    def _walk(self, value: Any, *, key: str) -> Any:
        if isinstance(value, str) and type(value) is str:  # an enum member stays what it is
            return self.text(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes = {
                item.name: self._walk(getattr(value, item.name), key=item.name)
                for item in dataclasses.fields(value)
                if item.init and item.name not in _VERBATIM_FIELDS
            }
            return dataclasses.replace(value, **changes)
        if isinstance(value, dict) or (hasattr(value, "items") and hasattr(value, "keys")):
            if key.lower() in _ENV_KEYS:
                return {name: self._env(str(name), inner) for name, inner in value.items()}
            return {
                (self.text(name) if isinstance(name, str) else name): self._entry(name, inner)
                for name, inner in value.items()
            }
        if isinstance(value, (tuple, list)):
            return type(value)(self._walk(inner, key=key) for inner in value)
        return value

    def _entry(self, name: Any, value: Any) -> Any:
        key = str(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            if _SERIAL_KEYS.search(key.lower()):
                text = str(value)
                return self._known.get(text, text) if text.strip("0") else value
            if isinstance(value, str) and _SECRET_NAME.search(key) and value:
                return HIDDEN
        return self._walk(value, key=key)

    def _env(self, name: str, value: Any) -> Any:
        return self._walk(value, key=name) if env_is_shown(name) or not value else HIDDEN

    # What each shape becomes.

    def _numbered(self, kind: str, value: str) -> str:
        seen = self._numbers.setdefault(kind, {})
        return seen.setdefault(value, f"<{kind}-{len(seen) + 1}>")

    def _url(self, match: re.Match[str]) -> str:
        scheme, rest = match[1], match[2]
        authority, slash, path = rest.partition("/")
        if "@" in authority:
            authority = f"{HIDDEN}@{authority.rsplit('@', 1)[1]}"
        try:
            host = urlsplit(f"{scheme}://{rest}").hostname or ""
        except ValueError:  # an unbalanced [ of an IPv6 address
            host = ""
        if host and "." in host and not _is_public(host) and not _is_address(host):
            authority = re.sub(re.escape(host), "<host>", authority, flags=re.IGNORECASE)
        whole = f"{authority}{slash}{path}"
        base, question, query = whole.partition("?")
        if question:
            pairs = (pair.partition("=") for pair in query.split("&"))
            query = "&".join(f"{name}={HIDDEN}" if eq else name for name, eq, _ in pairs)
        return f"{scheme}://{base}{question}{query}"

    def _assignment(self, match: re.Match[str]) -> str:
        return match[0] if env_is_shown(match[1]) else f"{match[1]}={HIDDEN}"

    def _home(self, match: re.Match[str]) -> str:
        name = match[2]
        if name.startswith("<") or name in _COMMON_ACCOUNTS:
            return match[0]
        return f"{match[1]}<user>"

    def _uuid(self, match: re.Match[str]) -> str:
        return f"{match[1] or 'uuid-'}#{_short_hash(match[2])}"

    def _ipv6(self, match: re.Match[str]) -> str:
        text = match[0]
        stripped = text.rstrip(".:") if not text.endswith("::") else text
        try:
            address = ipaddress.IPv6Address(stripped)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return self._numbered("ip", str(address)) + text[len(stripped) :]

    def _ipv4(self, match: re.Match[str]) -> str:
        text = match[0]
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or text in self._versions:
            return text
        if _VERSION_BEFORE.search(match.string[max(0, match.start() - 24) : match.start()]):
            return text
        return self._numbered("ip", text)


def _is_public(host: str) -> bool:
    return host in _PUBLIC_DOMAINS or host.endswith(tuple(f".{name}" for name in _PUBLIC_DOMAINS))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
