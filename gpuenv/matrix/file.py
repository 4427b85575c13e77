"""The matrix file as a document: read for changing, and written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.matrix.document import Problem, read_document, write_document
from gpuenv.matrix.load import MatrixFileError, build_matrix, find_problems
from gpuenv.reading import read_named_text, reason
from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.matrix.document import Document


def load_document(path: Path) -> Document:
    """Read a matrix file with its comments, to be changed and written back.

    Raises:
        MatrixFileError: It cannot be read, holds problems, or is not in canonical form, so that
            writing it back would change more than was meant.
    """
    try:
        text = read_named_text(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise MatrixFileError(
            f"cannot read the matrix {path}", why=reason(exc), fix="check the path and its rights"
        ) from exc
    document = read_document(text, keep_comments=True)
    _require_sound(document, path)
    written = write_document(document)
    if written != text:
        line = next(
            (
                number
                for number, (ours, theirs) in enumerate(
                    zip(written.splitlines(), text.splitlines(), strict=False), start=1
                )
                if ours != theirs
            ),
            len(text.splitlines()),
        )
        raise MatrixFileError(
            f"{path} is not in its canonical form",
            why=f"it first differs in line {line}",
            fix="put the line into the form its neighbours have",
        )
    return document


def save_document(path: Path, text: str) -> None:
    """Write the text of a matrix in place of a file, after checking that it can be read back.

    Raises:
        MatrixFileError: The text is no sound matrix, or the file cannot be written; then the old
            file is still there.
    """
    document = read_document(text)
    _require_sound(document, path)
    try:
        write_whole(path, text.encode(), mode=path.stat().st_mode & 0o7777)
    except OSError as exc:
        raise MatrixFileError(
            f"cannot write the matrix {path}",
            why=str(exc.strerror),
            fix="work on a copy: --matrix FILE names it",
        ) from exc


def _require_sound(document: Document, path: Path) -> None:
    problems = find_problems(document)
    if not problems:
        try:
            build_matrix(document.data)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
            problems = (Problem(line=0, where="", text=f"{type(error).__name__}: {error}"),)
    if problems:
        raise MatrixFileError(
            f"{path} would have {len(problems)} problem{'s' if len(problems) != 1 else ''}",
            why="\n".join(map(str, problems)),
            fix="mend what is named",
        )
