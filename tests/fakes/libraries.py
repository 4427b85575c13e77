"""Compile the stand-ins for the driver's libraries, with every name that NVML has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.conftest import missing

HERE = Path(__file__).parent


def _compile(source: Path, library: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler, to build the stand-ins for the driver's libraries")
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            compiler,
            *flags,
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{library.name}",
            "-o",
            library,
            source,
        ],
        check=True,
    )
    return library


def build_libcuda(folder: Path, *, always: int | None = None) -> Path:
    """Compile ``libcuda.so.1`` into a folder, which then goes on LD_LIBRARY_PATH.

    Args:
        folder: Made when it is not there.
        always: What cuInit returns, whatever FAKE_CUINIT says.
    """
    flags = () if always is None else (f"-DALWAYS={always}",)
    return _compile(HERE / "libcuda.c", folder / "libcuda.so.1", *flags)


def nvml_names() -> list[str]:
    """Return every function of NVML that pynvml asks a library for."""
    import pynvml

    text = Path(pynvml.__file__).read_text(encoding="utf-8")
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text)))


def build_libnvidia_ml(folder: Path) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a folder."""
    source = (HERE / "libnvidia_ml.c").read_text(encoding="utf-8")
    written = set(re.findall(r"^(?:int|const char \*)\s*(nvml\w+)\(", source, re.MULTILINE))
    others = [name for name in nvml_names() if name not in written]
    lines = [f'int {name}(void) {{ return fake_code("{name}", 3); }}' for name in others]
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "libnvidia_ml.c"
    whole.write_text(source + "\n".join(lines) + "\n", encoding="utf-8")
    return _compile(whole, folder / "libnvidia-ml.so.1")
