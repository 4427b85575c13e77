"""Value types for versions: parse, compare and print, always as numbers.

``2.10`` is newer than ``2.9`` and a version of one kind never compares with one of another:
``CudaVersion.parse("12.8") < CudnnVersion.parse("9.1")`` is a ``TypeError``, not an answer.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from typing_extensions import Self

_DOTTED = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}", re.ASCII)
_CAPABILITY_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9])", re.ASCII)
_CAPABILITY_SM = re.compile(
    r"(?:sm_?|compute_?)?([0-9]{1,2})([0-9])[af]?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True, eq=False)
class DottedVersion:
    """A version made of numbers and dots, given to any depth.

    ``12.8`` and ``12.8.0`` are equal; which depth was given still matters to
    :meth:`is_prefix_of`, where ``12.8`` covers ``12.8.1`` and ``12.8.0`` does not.
    """

    parts: tuple[int, ...]
    kind: ClassVar[str] = "version"
    example: ClassVar[str] = "2.8 or 2.8.0"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text``, for example ``"2.14.1"``.

        Raises:
            ConfigurationError: ``text`` is not numbers joined by dots.
        """
        text = text.strip()
        if not _DOTTED.fullmatch(text):
            raise ConfigurationError(
                f"{text!r} is not a {cls.kind}",
                why="a version is numbers joined by dots",
                fix=f"write it like {cls.example}",
            )
        return cls(tuple(int(part) for part in text.split(".")))

    @property
    def major(self) -> int:
        """The first number."""
        return self.parts[0]

    @property
    def minor(self) -> int:
        """The second number, 0 when not given."""
        return self.parts[1] if len(self.parts) > 1 else 0

    @property
    def patch(self) -> int:
        """The third number, 0 when not given."""
        return self.parts[2] if len(self.parts) > 2 else 0  # noqa: PLR2004

    def is_prefix_of(self, other: Self) -> bool:
        """Say whether ``other`` starts with every number given here (``2.8`` covers ``2.8.1``)."""
        return other.parts[: len(self.parts)] == self.parts

    def truncate(self, depth: int) -> Self:
        """Keep the first ``depth`` numbers."""
        return type(self)(self.parts[:depth])

    def _key(self) -> tuple[int, ...]:
        parts = self.parts
        while len(parts) > 1 and parts[-1] == 0:
            parts = parts[:-1]
        return parts

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __lt__(self, other: Self) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = list(zip_longest(self.parts, other.parts, fillvalue=0))
        return [a for a, _ in pairs] < [b for _, b in pairs]

    # Written out for type checkers, which do not see what functools.total_ordering adds.
    def __le__(self, other: Self) -> bool:
        return NotImplemented if type(other) is not type(self) else not other < self

    def __gt__(self, other: Self) -> bool:
        return NotImplemented if type(other) is not type(self) else other < self

    def __ge__(self, other: Self) -> bool:
        return NotImplemented if type(other) is not type(self) else not self < other

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class TorchVersion(DottedVersion):
    """A PyTorch release, without its local tag: ``2.14.1``."""

    __slots__ = ()
    kind = "torch version"


class CudaVersion(DottedVersion):
    """A CUDA version of the toolkit kind: ``12.8`` or ``12.8.1``."""

    __slots__ = ()
    kind = "CUDA version"
    example = "12.8 or 12.8.1"

    @property
    def variant(self) -> str:
        """The wheel variant built for it: ``cu128``."""
        return f"cu{self.major}{self.minor}"


class CudnnVersion(DottedVersion):
    """A cuDNN wheel version: ``9.10.2.21``."""

    __slots__ = ()
    kind = "cuDNN version"
    example = "9, 9.10 or 9.10.2.21"


class NcclVersion(DottedVersion):
    """An NCCL wheel version: ``2.27.5``."""

    __slots__ = ()
    kind = "NCCL version"
    example = "2.27 or 2.27.5"


class PythonVersion(DottedVersion):
    """A Python version: ``3.11``."""

    __slots__ = ()
    kind = "Python version"
    example = "3.12"


class DriverRelease(DottedVersion):
    """The release of the NVIDIA kernel driver package: ``580.65.06``.

    Not to be mixed up with the highest CUDA version that driver supports, which is what
    ``nvidia-smi`` prints in its corner (:class:`DriverCudaVersion`).
    """

    __slots__ = ()
    kind = "driver release"
    example = "580 or 580.65.06"

    @property
    def branch(self) -> int:
        """The release branch, ``580``."""
        return self.parts[0]

    def __str__(self) -> str:
        # NVIDIA prints the later parts with two digits: 580.65.06.
        return ".".join([str(self.parts[0]), *(f"{part:02d}" for part in self.parts[1:])])


class DriverCudaVersion(DottedVersion):
    """The highest CUDA version a driver supports, by ``cuDriverGetVersion``: ``13.0``."""

    __slots__ = ()
    kind = "driver CUDA version"
    example = "13.0"

    @classmethod
    def from_driver_api(cls, number: int) -> Self:
        """Convert the driver API's ``13000`` or ``12080``."""
        return cls((number // 1000, number % 1000 // 10))


@dataclass(frozen=True, slots=True, order=True)
class ComputeCapability:
    """A GPU architecture: ``9.0``, written ``sm_90`` when it names code compiled for it."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``9.0``, ``sm_90``, ``90``, ``sm_121a`` or ``compute_90``.

        Raises:
            ConfigurationError: ``text`` is none of these.
        """
        match = _CAPABILITY_DOTTED.fullmatch(text) or _CAPABILITY_SM.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a compute capability",
                why="a compute capability is a major and a minor number",
                fix="write it like 9.0 or sm_90",
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def sm(self) -> str:
        """The name of compiled code for it, ``sm_90``."""
        return f"sm_{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"
