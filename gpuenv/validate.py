"""What may stand in a Dockerfile: every value that is written into one is checked here.

A check takes a text and where it came from, and returns the text or raises. Patterns are matched
in full and over ASCII alone, so a line break, a quote or a letter that only looks like one is
refused. :func:`check_spec` is the last gate, in front of the template, whoever made the spec.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from gpuenv.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuenv.spec import Delivery, EnvironmentSpec, ImageRequest, ImageSpec

_APT = re.compile(
    r"[a-z0-9][a-z0-9+.-]{1,127}(?::[a-z0-9]{2,16})?(?:=[A-Za-z0-9][A-Za-z0-9.+:~-]{0,127})?"
)
_DRIVER = re.compile(
    r"(?:cuda-drivers|libcuda1|libnvidia-(?!container)|nvidia-(?:driver|kernel|dkms|utils|compute))"
    r"[a-z0-9+.-]*"
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ENV_VALUE_LENGTH = 4096
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:TOKEN|PASS|PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)",
    re.IGNORECASE,
)
_OWN_NAMES = ("HOME", "LOGNAME", "PATH", "USER", "VIRTUAL_ENV")
_WORKDIR = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}){1,8}")
_SYSTEM_FOLDERS = (
    *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc"),
    *("root", "run", "sbin", "sys", "usr", "var"),
)
_SHARED_FOLDERS = ("/home", "/home/dev", "/media", "/mnt", "/opt", "/srv", "/tmp")  # noqa: S108
_OWN_FOLDERS = ("/opt/gpuenv", "/opt/python", "/opt/venv", "/home/dev/.cache")
_NAME_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_IMAGE_NAME = re.compile(rf"(?=.{{1,100}}\Z){_NAME_PART}(?:/{_NAME_PART})*")
_HOST = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9a-fA-F:]{2,39}\])(?::[0-9]{1,5})?"
)
_IMAGE_REF = re.compile(
    rf"(?=.{{1,400}}\Z)(?:{_HOST}/)?{_NAME_PART}(?:/{_NAME_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_URL = re.compile(rf"https?://{_HOST}(?:/[A-Za-z0-9._~%+-]+)*/?")
_REQUIREMENT_TEXT = re.compile(r"[\x20-\x7e]{1,1000}")
# The common case, taken without loading the parser of all others.
_PLAIN_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
    r"(?: ?(?:==|>=|<=|~=|!=|>|<) ?[0-9]{1,9}(?:\.[0-9]{1,9}){0,5})?"
)
_HASH = re.compile(r"--hash=sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})")
_CREDENTIALS = re.compile(r"[a-z0-9+.-]+://[^/\s]*@", re.IGNORECASE)
_DIRECT_URL = re.compile(
    rf"(?:git\+)?https://{_HOST}(?:/[A-Za-z0-9._~%+-]+)+(?:@[A-Za-z0-9._/-]+)?(?:#[A-Za-z0-9._=&:-]+)?"
)
_VARIANT = re.compile(r"cpu|cu[0-9]{2,4}")
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
_CONTEXT_PATH = re.compile(r"(?!/)(?:[A-Za-z0-9_+!~.-]+/){0,4}[A-Za-z0-9_+!~.-]+")
_INCLUDE = re.compile(r"(?:-r\s*|--requirement(?:\s+|=))(\S.*)")
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio")


def _refuse(what: str, *, why: str, fix: str, origin: str) -> NoReturn:
    # What is refused is shown, and may be an address with a password in it.
    why = f"{why} (from {origin})" if origin else why
    raise ConfigurationError(redacted(what), why=redacted(why), fix=fix)


def check_apt(text: str, *, origin: str = "") -> str:
    """Return the name of a Debian package, with an architecture or a version where given.

    Raises:
        ConfigurationError: It is none, or a piece of the driver, which the host brings.
    """
    if not _APT.fullmatch(text):
        _refuse(
            f"{text!r} is not the name of a Debian package",
            why="a name is lower-case letters, digits and + - . with =VERSION behind it at most",
            fix="apt-cache search finds the name",
            origin=origin,
        )
    if _DRIVER.fullmatch(text.partition("=")[0].partition(":")[0]):
        _refuse(
            f"{text} is a part of the NVIDIA driver",
            why="the host's driver is brought into each container; a second one breaks it",
            fix="leave it out",
            origin=origin,
        )
    return text


def check_requirement(text: str, *, origin: str = "", hashes: bool = False) -> str:
    """Return a requirement for a Python package, as PEP 508 writes it.

    Args:
        hashes: Allow ``--hash=…`` behind it, as requirements files have it.

    Raises:
        ConfigurationError: It is none, names a local path, or holds credentials.
    """
    plain = text
    if hashes:
        words = text.split(" ")
        while len(words) > 1 and _HASH.fullmatch(words[-1]):
            words.pop()
        plain = " ".join(words)
    if not _REQUIREMENT_TEXT.fullmatch(plain) or plain != plain.strip():
        _refuse(
            f"{text!r} is not a requirement",
            why="a requirement is one line of ASCII",
            fix="write it like einops or transformers>=5",
            origin=origin,
        )
    if plain.startswith("-"):
        _refuse(
            f"{text!r} is an option, not a requirement",
            why="a build takes requirements alone; its sources are flags, one place for all steps",
            fix=_instead_of_option(plain),
            origin=origin,
        )
    if _CREDENTIALS.search(plain):
        _refuse(
            "a requirement holds a user name or a password",
            why="it would stand in the image's history",
            fix="put the credentials into pip's settings or --index-url",
            origin=origin,
        )
    if _PLAIN_REQUIREMENT.fullmatch(plain):
        return text
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(plain)
    except InvalidRequirement as exc:
        raise ConfigurationError(
            f"{redacted(text)!r} is not a requirement",
            why=redacted(f"{exc}".splitlines()[0] + (f" (from {origin})" if origin else "")),
            fix=_instead_of(plain),
        ) from exc
    if requirement.url is not None and not _DIRECT_URL.fullmatch(requirement.url):
        _refuse(
            f"{text!r} names a source that a build cannot use",
            why="only https:// and git+https:// addresses are taken",
            fix="put the wheel into a --wheelhouse and ask for it by name",
            origin=origin,
        )
    return text


_PROJECT_FILES = (
    "a build sees no project files: put wheels into a --wheelhouse, and install projects from the "
    "workspace"
)


def _instead_of(text: str) -> str:
    """Say what to write in place of a line that is no requirement."""
    if "--hash" in text:
        return "write a whole digest behind it: --hash=sha256: and 64 hexadecimal digits"
    if "://" in text and "@ " not in text:
        return f"say what it is called: NAME @ {redacted(text)}"
    if "/" in text or text.startswith(".") or text.endswith((".whl", ".tar.gz")):
        return _PROJECT_FILES
    return "write it like einops or transformers>=5"


def _instead_of_option(text: str) -> str:
    """Say what to use in place of an option of pip's in a requirements file."""
    option = re.split(r"[\s=]", text, maxsplit=1)[0]
    if option in {"-e", "--editable"}:
        return _PROJECT_FILES
    if option in {"-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index"}:
        return "use --index-url, --extra-index-url, --wheelhouse or --offline"
    if option in {"-c", "--constraint"}:
        return "take its lines in as requirements, or name the file in pip's own settings"
    if option == "--pre":
        return "ask for the version itself: einops==1.0rc1"
    return "leave the line out"


def parse_requirements(
    text: str, *, origin: str, include: Callable[[str], Iterable[str]] | None = None
) -> tuple[str, ...]:
    """Return the requirements of a requirements file: no comments, lines joined, all checked.

    Args:
        include: Called with the name behind ``-r``; returns that file's requirements. ``None``
            refuses such lines.

    Raises:
        ConfigurationError: Lines that cannot be taken; all of them are named.
    """
    found: list[str] = []
    problems: list[ConfigurationError] = []
    for number, line in _logical_lines(text):
        place = f"{origin}, line {number}"
        included = _INCLUDE.fullmatch(line)
        try:
            if included and include is not None:
                found += include(included[1].strip())
                continue
            found.append(check_requirement(" ".join(line.split()), origin=place, hashes=True))
        except ConfigurationError as error:
            problems.append(error)
    raise_together(problems)
    return tuple(found)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending = ""
    start = 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start or number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        whole = re.sub(r"(?:^|\s)#.*", "", pending + line).strip()
        if whole:
            yield start, whole
        pending, start = "", 0
    whole = re.sub(r"(?:^|\s)#.*", "", pending).strip()
    if whole:
        yield start, whole


def check_env(name: str, value: str, *, origin: str = "") -> tuple[str, str]:
    """Return a variable for the image.

    Raises:
        ConfigurationError: The name is none, is the image's own or sounds like a secret, or the
            value has control characters.
    """
    if not _ENV_NAME.fullmatch(name):
        _refuse(
            f"{name!r} is not the name of a variable",
            why="a name is letters, digits and _, and starts with no digit",
            fix="write it like NAME=VALUE",
            origin=origin,
        )
    if not _is_env_value(value):
        _refuse(
            f"the value of {name} has characters that no image variable can hold",
            why="line breaks and control characters are refused, and more than 4096 characters",
            fix="put such text into a file",
            origin=origin,
        )
    if name in _OWN_NAMES:
        _refuse(
            f"{name} is the image's own",
            why="the environment's python would no longer be found, or the home be another",
            fix="leave it out",
            origin=origin,
        )
    if _CREDENTIALS.search(value):
        _refuse(
            f"the value of {name} holds a user name or a password",
            why="whoever has the image can read its variables",
            fix=f"give it to a container, not to the image: gpuenv run --env {name}",
            origin=origin,
        )
    if value and _SECRET_NAME.fullmatch(name):
        _refuse(
            f"{name} sounds like a secret",
            why="whoever has the image can read its variables",
            fix=f"give it to a container, not to the image: gpuenv run --env {name}",
            origin=origin,
        )
    return name, value


def _is_env_value(text: str) -> bool:
    # isprintable is false for control characters, line separators and marks that turn text round.
    return len(text) <= _ENV_VALUE_LENGTH and text.isprintable()


def check_workdir(text: str, *, origin: str = "") -> str:
    """Return the folder where commands start.

    Raises:
        ConfigurationError: It is not absolute, or a folder of the system.
    """
    if not _WORKDIR.fullmatch(text):
        _refuse(
            f"{text!r} cannot be the working folder",
            why="it is an absolute path of letters, digits and . _ - without dots in front",
            fix="write it like /workspace",
            origin=origin,
        )
    if (
        text.split("/")[1] in _SYSTEM_FOLDERS
        or text in _SHARED_FOLDERS
        or any(f"{text}/".startswith(f"{folder}/") for folder in _OWN_FOLDERS)
    ):
        _refuse(
            f"{text} cannot be the working folder",
            why="it belongs to the system or to the recipe, and the user gets the working folder",
            fix="write it like /workspace",
            origin=origin,
        )
    return text


def check_image_ref(text: str, *, origin: str = "") -> str:
    """Return the reference of an image.

    Raises:
        ConfigurationError: It is none.
    """
    if not _IMAGE_REF.fullmatch(text):
        _refuse(
            f"{text!r} is not the name of an image",
            why="a reference is [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST] in lower case",
            fix="write it like debian:bookworm-slim",
            origin=origin,
        )
    return text


def check_container(text: str, *, origin: str = "") -> str:
    """Return the name or the identifier of a container.

    Raises:
        ConfigurationError: It is none.
    """
    if not _CONTAINER.fullmatch(text):
        _refuse(
            f"{text!r} is not the name of a container",
            why="a name is letters, digits and _ . - and begins with a letter or a digit",
            fix="docker ps lists the names",
            origin=origin,
        )
    return text


def check_tag(text: str, *, origin: str = "") -> str:
    """Return a name that an image can be given.

    Raises:
        ConfigurationError: It is none, or holds a digest, which only the content decides.
    """
    check_image_ref(text, origin=origin)
    if "@" in text:
        _refuse(
            f"{text!r} cannot be given to an image",
            why="a digest follows from the content",
            fix=f"leave the digest out: {text.partition('@')[0]}",
            origin=origin,
        )
    return text


def check_image_name(text: str, *, origin: str = "") -> str:
    """Return the middle of an image's default name, ``localhost/gpuenv/NAME:…``.

    Raises:
        ConfigurationError: It is none.
    """
    if not _IMAGE_NAME.fullmatch(text):
        _refuse(
            f"{text!r} cannot be the name of an image",
            why="a name is lower-case letters and digits, with . _ - between them",
            fix="write it like speech-team",
            origin=origin,
        )
    return text


def check_mirror(text: str, *, origin: str = "") -> str:
    """Return the address of an apt mirror.

    Raises:
        ConfigurationError: It is none, or holds credentials.
    """
    if not _URL.fullmatch(text):
        _refuse(
            f"{redacted(text)!r} is not the address of an apt mirror",
            why="http:// or https://, a host and a path, and no credentials: it is in the history",
            fix="write it like https://mirror.example.org/debian",
            origin=origin,
        )
    return text


def redacted(text: str) -> str:
    """Return a text whose credentials are masked."""
    return re.sub(r"(://)[^/\s]*@", r"\1***@", text)


def raise_together(problems: list[ConfigurationError]) -> None:
    """Raise one error for all problems, or nothing when there are none."""
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    raise ConfigurationError(
        f"{len(problems)} values cannot be taken",
        why="\n".join(f"{p.what}: {p.why}" for p in problems),
        fix="\n".join(dict.fromkeys(p.fix for p in problems if p.fix)),
    )


def collect(checks: Iterable[Callable[[], object]]) -> list[ConfigurationError]:
    """Run every check and return what they raised."""
    problems = []
    for check in checks:
        try:
            check()
        except ConfigurationError as error:  # noqa: PERF203 - all problems are shown together
            problems.append(error)
    return problems


def check_spec(spec: ImageSpec, delivery: Delivery) -> None:
    """Check everything of a spec and a delivery that will stand in the Dockerfile.

    Raises:
        ConfigurationError: Something cannot; all of it is named.
    """
    problems = collect(
        (
            *_image_checks(spec.image),
            *_environment_checks(spec.environment),
            partial(_check_delivery, delivery),
        )
    )
    if not problems:
        problems += _swapping(spec)
    raise_together(problems)


def _image_checks(image: ImageRequest) -> Iterator[Callable[[], object]]:
    yield partial(check_image_name, image.name)
    if image.base is not None:
        yield partial(check_image_ref, image.base)
    yield partial(check_workdir, image.workdir)
    yield from (partial(check_apt, package) for package in image.apt)
    for requirement in (*image.pip, *image.requirements):
        yield partial(check_requirement, requirement, hashes=True)
    yield from (partial(check_env, name, value) for name, value in image.env)
    yield partial(_check_git, image)


def _check_git(image: ImageRequest) -> None:
    wants = [text for text in (*image.pip, *image.requirements) if "git+" in text]
    if wants and not any(package.partition("=")[0] == "git" for package in image.apt):
        raise ConfigurationError(
            f"{wants[0]!r} needs git, and the image has none",
            why="git and what it needs are 90 MB, so it is there on request",
            fix="add --apt git",
        )


def _environment_checks(environment: EnvironmentSpec) -> Iterator[Callable[[], object]]:
    yield partial(check_image_ref, environment.base_image)
    yield partial(_check_pattern, environment.torch_variant, _VARIANT)
    for version in (environment.torchvision, environment.torchaudio):
        if version is not None:
            yield partial(_check_pattern, version, _VERSION)
    for wheel, version in environment.overrides:
        yield partial(check_requirement, f"{wheel}=={version}")
    for requirement in environment.devel_packages:
        yield partial(check_requirement, requirement)


def _check_pattern(text: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} cannot stand in a Dockerfile",
            why="a value of the matrix has a form that is not expected",
            fix="gpuenv matrix verify checks the row",
        )


def _check_delivery(delivery: Delivery) -> None:
    if delivery.apt_mirror is not None:
        check_mirror(delivery.apt_mirror, origin="--apt-mirror")
    for file in (*delivery.files, *delivery.late):
        if not _CONTEXT_PATH.fullmatch(file.path) or ".." in file.path.split("/"):
            raise ConfigurationError(
                f"{file.path!r} cannot be the name of a file of a build",
                why="letters, digits and . _ + - are taken",
                fix="rename the file",
            )
    for name, value in delivery.environ:
        if not _ENV_NAME.fullmatch(name) or not _is_env_value(value):
            raise ConfigurationError(
                f"the setting {name!r} cannot be given to a build",
                why="its name or its value has characters that no variable holds",
                fix="look for it in pip's or uv's settings",
            )


def _swapping(spec: ImageSpec) -> list[ConfigurationError]:
    """Find requirements for torch that the row cannot fulfil, before a build of minutes does."""
    environment = spec.environment
    row = {
        "torch": str(environment.torch),
        "torchvision": environment.torchvision,
        "torchaudio": environment.torchaudio,
    }
    problems = []
    for text in (*spec.image.pip, *spec.image.requirements):
        if not text.lower().startswith(_TORCH_FAMILY):
            continue
        from packaging.requirements import Requirement

        requirement = Requirement(text.split(" --hash", 1)[0])
        name = requirement.name.lower()
        version = row.get(name)
        if version is None:
            continue
        fits = requirement.url is None and any(
            requirement.specifier.contains(v, prereleases=True)
            for v in (version, f"{version}+{environment.torch_variant}")
        )
        if not fits:
            problems.append(
                ConfigurationError(
                    f"{text!r} asks for another {name} than this image has",
                    why=f"the image is resolved for {name} {version}+{environment.torch_variant}",
                    fix="drop it from the requirements, or ask for it: --torch VERSION"
                    if name == "torch"
                    else "drop the version: the one that belongs to torch is installed",
                )
            )
    return problems
