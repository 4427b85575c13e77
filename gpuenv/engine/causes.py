"""Find the likely cause of a failed build in what its step printed.

One table: the first rule whose pattern is found gives the error its class, a short name for the
cause and one thing to do. Rules that explain others come first: without a certificate pip also says
that it found no version, and without DNS apt also says that it cannot locate the package.

Source:
    Recorded from apt 2.6, pip 23.0, uv 0.13, curl 7.88 and Docker 20.10 in
    ``tests/data/build-failures``; the words of newer BuildKits are from its source.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.engine import errors as e
from gpuenv.engine.progress import shorten, split_name
from gpuenv.errors import BuildFailedError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.engine.events import Failed

_STEP_WIDTH = 80


class BuildDiskFullError(BuildFailedError):
    """A step ran out of disk space."""

    slug = "build-disk-full"


class BuildCertificateError(BuildFailedError):
    """A step met a TLS certificate that the image does not trust."""

    slug = "build-certificate"


class BuildHashMismatchError(BuildFailedError):
    """What was downloaded is not what was pinned."""

    slug = "build-hash-mismatch"


class BuildIndexDeniedError(BuildFailedError):
    """A package index or mirror wants a login, or denies it."""

    slug = "build-index-denied"


class BuildDnsError(BuildFailedError):
    """A step could not look up a host name."""

    slug = "build-dns"


class BuildNetworkError(BuildFailedError):
    """A step could not reach a server."""

    slug = "build-network"


class BuildSignatureError(BuildFailedError):
    """A package archive's signature could not be checked."""

    slug = "build-signature"


class BuildConflictError(BuildFailedError):
    """The requirements contradict one another."""

    slug = "build-conflict"


class BuildWheelMissingError(BuildFailedError):
    """No index has a fitting build of a Python package."""

    slug = "build-wheel-missing"


class BuildPackageMissingError(BuildFailedError):
    """The distribution has no such package, or its lists are out of date."""

    slug = "build-package-missing"


class BuildCompilerMissingError(BuildFailedError):
    """A package is built from source, and what that needs is not in the image."""

    slug = "build-compiler-missing"


class BuildOutOfMemoryError(BuildFailedError):
    """A step was ended for want of memory, or ran out of it itself."""

    slug = "build-out-of-memory"


class BuildBaseMissingError(BuildFailedError):
    """The base image is not on the engine and could not be fetched."""

    slug = "build-base-missing"


class BuildCommandMissingError(BuildFailedError):
    """A step called a program that the image does not have."""

    slug = "build-command-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One known failure.

    Attributes:
        pattern: Looked for in each line the step printed and in the engine's message.
        of_engine: Looked for in the engine's message alone.
    """

    pattern: re.Pattern[str]
    error: type[BuildFailedError]
    cause: str
    fix: str
    of_engine: bool = False


def _rule(
    pattern: str, error: type[BuildFailedError], cause: str, fix: str, *, of_engine: bool = False
) -> Rule:
    return Rule(
        pattern=re.compile(pattern, re.IGNORECASE),
        error=error,
        cause=cause,
        fix=fix,
        of_engine=of_engine,
    )


_RULES: tuple[Rule, ...] = (
    _rule(
        r"dockerfile parse error|unknown instruction|failed to compute cache key: .*not found"
        r"|failed to calculate checksum of ref|failed to read dockerfile|cannot locate specified "
        r"dockerfile|target stage .* could not be found|circular dependency detected"
        r"|unknown flag|tar: (?:invalid|unexpected)",
        e.BuildContextError,
        "the engine cannot read the Dockerfile or a file it copies",
        "mend that line; the context holds only what the build plan lists",
        of_engine=True,
    ),
    _rule(
        r"failed to do request: Head|pull access denied|failed to authorize"
        r"|failed to resolve source metadata|manifest unknown|failed to fetch anonymous token",
        BuildBaseMissingError,
        "the base image is not on the engine and cannot be fetched",
        "pull or make it first (gpuenv build --make-base), or name another one with --base",
        of_engine=True,
    ),
    _rule(
        r"no space left on device|\[Errno 28\]|you don't have enough free space"
        r"|disk quota exceeded|os error 28",
        BuildDiskFullError,
        "no room is left on the disk",
        "make room where the engine stores images: gpuenv engine status shows where that is",
    ),
    _rule(
        r"certificate verify failed|invalid peer certificate|UnknownIssuer|self-signed certificate"
        r"|SSL certificate problem|certificate verification failed|confirming the ssl certificate"
        r"|unable to get local issuer certificate|certificate has expired|x509:",
        BuildCertificateError,
        "a server's certificate is not trusted inside the image",
        "give your organisation's CA with --ca-bundle; with the right CA, check the clock",
    ),
    _rule(
        r"do not match the hashes|hash mismatch|hash sum mismatch|expected sha256|bad crc \(got",
        BuildHashMismatchError,
        "a download is not the file that was pinned",
        "a mirror changed the file: lock again if that is right, else distrust the mirror",
    ),
    _rule(
        r"\b40[13]\b[^\n]{0,40}(?:Client Error|Unauthorized|Forbidden|Credentials)"
        r"|HTTP (?:status client )?error:? ?\(?40[13]|407 Proxy Authentication"
        r"|\b401 Error|authentication required|Missing credentials"
        r"|returned error: 40[13]|\s40[13]  (?:Unauthorized|Forbidden)",
        BuildIndexDeniedError,
        "a package index denies access",
        "put its credentials into pip's configuration or ~/.netrc; they stay out of the image",
    ),
    _rule(
        r"temporary failure (?:resolving|in name resolution)|could not resolve (?:host|'|proxy)"
        r"|name or service not known|nodename nor servname|failed to lookup address"
        r"|error resolving DNS|getaddrinfo|no address associated with hostname|no such host",
        BuildDnsError,
        "a host name cannot be looked up during the build",
        "check the engine's DNS (daemon.json, dns), or build in the host's network: --network host",
    ),
    _rule(
        r"connection refused|network is unreachable|no route to host|connection timed out"
        r"|could not connect to|failed to establish a new connection|read timed out"
        r"|connection reset by peer|operation timed out|error sending request"
        r"|cannot connect to proxy|tunnel connection failed",
        BuildNetworkError,
        "a server cannot be reached during the build",
        "check proxy and mirror settings; the build sees the engine's network, not your shell's",
    ),
    _rule(
        r"NO_PUBKEY|signatures couldn't be verified|repository .* is not signed"
        r"|Release file .* is not valid yet|Release file .* expired|invalid signature",
        BuildSignatureError,
        "the signature of a package archive cannot be checked",
        "the base image's keys are too old, or its clock is off: use a newer base image",
    ),
    _rule(
        r"ResolutionImpossible|conflicting dependencies|depends on .* we can conclude that you "
        r"require|are incompatible|And because (?:you require|your project)",
        BuildConflictError,
        "the requirements contradict one another",
        "loosen one of the versions named above; torch and its CUDA packages are pinned by the row",
    ),
    _rule(
        r"no matching distribution found|could not find a version that satisfies"
        r"|was not found in the package registry|there (?:is no version|are no versions) of"
        r"|has no usable wheels|has no wheels with a matching|no solution found when resolving"
        r"|is not a supported wheel|not found in the provided package locations",
        BuildWheelMissingError,
        "no index has a fitting build of a Python package",
        "check name, version and Python version; a private package needs its index configured",
    ),
    _rule(
        r"unable to locate package|has no installation candidate|E: Version .* was not found"
        r"|\b404  Not Found",
        BuildPackageMissingError,
        "the distribution has no such package, or its package lists are out of date",
        "check the name for this distribution; out-of-date lists go away with --no-cache",
    ),
    _rule(
        r"command '?[\w/.-]*(?:gcc|g\+\+|cc|clang|nvcc)'? failed"
        r"|(?:gcc|g\+\+|cc|nvcc): (?:command )?not found|fatal error: [\w/]+\.h: No such file"
        r"|No such file or directory: '?[\w/-]*(?:gcc|g\+\+|cc|nvcc)'"
        r"|unable to execute '?[\w-]*(?:gcc|g\+\+|cc)"
        r"|CUDA_HOME environment variable is not set|No CMAKE_C(?:XX)?_COMPILER could be found"
        r"|linker `cc` not found|Unknown compiler",
        BuildCompilerMissingError,
        "a package is compiled from source, and a compiler or header is missing",
        "use --flavor devel, add the -dev package with --apt, or a version that has wheels",
    ),
    _rule(
        r"\bMemoryError\b|cannot allocate memory|out of memory|virtual memory exhausted"
        r"|\bOOM\b|std::bad_alloc",
        BuildOutOfMemoryError,
        "a step ran out of memory",
        "give the engine's host more memory or swap, or compile with fewer jobs: --env MAX_JOBS=1",
    ),
)
_KILLED = Rule(
    pattern=re.compile("exit code: 137"),
    error=BuildOutOfMemoryError,
    cause="a step was killed, most often for want of memory (exit code 137)",
    fix="look for 'Out of memory' in the host's kernel log (dmesg); give it more memory or swap",
)
_MISSING = Rule(
    pattern=re.compile("not found"),
    error=BuildCommandMissingError,
    cause="a step calls a program that the image does not have (exit code 127)",
    fix="add the package that brings it with --apt",
)
_RETRY = re.compile(r"Retrying \(Retry\(|^Ign:\d")
_EXIT_KILLED = 137
_EXIT_NOT_FOUND = 127


def find_cause(
    log: tuple[str, ...], message: str, exit_code: int | None
) -> tuple[Rule, str] | None:
    """Return the rule that explains a failure and the line that shows it.

    Args:
        log: The last lines the step printed.
        message: The engine's own words. For a step that ran they repeat its command, in which
            anything may stand, so then they are not searched.
        exit_code: Of the step's command, ``None`` where none ran.
    """
    engine_lines = () if exit_code is not None else tuple(message.splitlines())
    settled = tuple(line for line in log if not _RETRY.search(line))
    found = _first_match(settled, engine_lines)
    if found is None or found[0].error is BuildWheelMissingError:
        # pip gives its retries as the only sign that it could not reach an index at all.
        found = _first_match(log, engine_lines) or found
    if found is not None:
        return found
    if exit_code == _EXIT_KILLED:
        return _KILLED, _exit_line(exit_code)
    if exit_code == _EXIT_NOT_FOUND:
        shown = next((line for line in reversed(log) if "not found" in line), _exit_line(exit_code))
        return _MISSING, shown
    return None


def _first_match(log: tuple[str, ...], engine_lines: tuple[str, ...]) -> tuple[Rule, str] | None:
    for rule in _RULES:
        for line in (*(() if rule.of_engine else reversed(log)), *engine_lines):
            if rule.pattern.search(line):
                return rule, line.strip()
    return None


def explain_failure(failed: Failed) -> BuildFailedError:
    """Return the error for a failed build, of the class of its likely cause.

    Its ``why`` holds the last lines of the step, its ``data`` the same facts for programs.
    """
    found = find_cause(failed.log, failed.message, failed.exit_code)
    rule, evidence = found or (None, "")
    number, text = split_name(failed.name)
    step = shorten(f"{number} {text}".strip(), _STEP_WIDTH)
    where = f" in step {step}" if step else ""
    what = f"the build failed{where}"
    # For a step that ran, the engine repeats the step's whole script: its exit code says the same.
    last = failed.message.strip() if failed.exit_code is None else _exit_line(failed.exit_code)
    lines = [line for line in (*failed.log, last) if line]
    return (rule.error if rule else BuildFailedError)(
        f"{what}: {rule.cause}" if rule else what,
        why="\n".join(lines),
        fix=rule.fix if rule else "the lines above are the step's own last words",
        data={
            "step": failed.name,
            "exit_code": failed.exit_code,
            "cause": rule.cause if rule else None,
            "evidence": evidence or None,
            "log": list(failed.log),
            "message": failed.message,
        },
    )


def _exit_line(exit_code: int | None) -> str:
    return f"exit code {exit_code}"
