"""Turn an image spec into a build context: the Dockerfile's text and the files beside it.

Pure: the same spec and the same delivery give the same bytes, on every machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpuenv import __version__
from gpuenv.resources import images_dir, package_dir
from gpuenv.spec import Delivery
from gpuenv.validate import check_requirement, check_spec
from gpuenv.values import dataclass
from gpuenv.versions import PythonVersion, TorchVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuenv.lockfile import Lock, LockedPackage, Step
    from gpuenv.spec import ContextFile, EnvironmentSpec, ImageSpec

TEMPLATE = "Dockerfile.cuda.j2"

VENV = "/opt/venv"
CONSTRAINTS = "/opt/gpuenv/constraints.txt"
USER = "dev"
USER_ID = 1000
HOME = "/home/dev"
HOST_FOLDER = ".gpuenv/host"
"""Where a delivery lies in the build context."""
LATE_FOLDER = ".gpuenv/late"
HOST_MOUNT = "/run/gpuenv/host"
"""Where a delivery lies while a step runs."""
CACHE_FOLDERS = ("huggingface", "nv", "pip", "torch", "torchinductor", "triton", "uv")
"""Below ``~/.cache``; each may become a named volume."""

PYTORCH_INDEX = "https://download.pytorch.org/whl"
UV_REQUIREMENT = "uv>=0.9,<0.14"
"""The installer. An upper bound, since uv changes its command line with the second number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What goes to the engine.

    Attributes:
        files: Beside the Dockerfile, which is not among them; sorted by path.
        labels: The image's labels, which the Dockerfile sets too; sorted by name.
    """

    dockerfile: str
    files: tuple[ContextFile, ...]
    labels: tuple[tuple[str, str], ...]


def render_context(
    spec: ImageSpec, delivery: Delivery | None = None, *, lock: Lock | None = None
) -> BuildContext:
    """Render a spec, with what this host lends to the build.

    Args:
        spec: With a lock, its :meth:`~gpuenv.lockfile.Lock.locked_spec`.
        delivery: What this host lends.
        lock: Install what it names, each file by its digest, in place of what resolving would give.

    Raises:
        ConfigurationError: Something in it cannot stand in a Dockerfile.
    """
    delivery = delivery or Delivery()
    check_spec(spec, delivery)
    return _rendered(spec, delivery, render_labels(spec, lock=lock), lock=lock)


def render_resolver(
    spec: ImageSpec,
    delivery: Delivery | None = None,
    *,
    kept: Sequence[str] = (),
    installer: Sequence[LockedPackage] = (),
    nonce: str = "",
) -> BuildContext:
    """Render what only resolves: its image holds the lists of :data:`RESOLVED`, and nothing else.

    It stands on the base of the spec and asks the sources of the delivery, as a build does; only
    that everything goes into one resolution, so that nothing is replaced by a later step.

    Args:
        spec: What would be built.
        delivery: What this host lends.
        kept: Versions to stay with where they still fit: ``einops==0.8.2``.
        installer: The uv to resolve with; by default the newest that the recipe knows.
        nonce: Another one asks the sources again; the engine would answer from its cache.
    """
    delivery = delivery or Delivery()
    check_spec(spec, delivery)
    for requirement in kept:
        check_requirement(requirement, origin="gpuenv.lock")
    return _rendered(
        spec,
        delivery,
        (),
        resolving=_Resolving(inputs=_inputs(spec, delivery), kept=tuple(kept), nonce=nonce),
        uv_pins=tuple(package.pin for package in installer),
    )


RESOLVED = ("pylock.all.toml", "pylock.installer.toml", "torch.txt", "jupyter.txt")
"""Files in the image of :func:`render_resolver`; the lists of steps that are not the last alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolving:
    """What the template needs to resolve and not to build."""

    inputs: tuple[tuple[Step, tuple[str, ...]], ...]
    kept: tuple[str, ...]
    nonce: str


def _inputs(spec: ImageSpec, delivery: Delivery) -> tuple[tuple[Step, tuple[str, ...]], ...]:
    """Return what is asked for up to each step, the last one being everything."""
    inputs: list[tuple[Step, tuple[str, ...]]] = [("torch", torch_requirements(spec, delivery))]
    for step in _steps(spec):
        if step["requirements"]:
            inputs.append((step["name"], (*inputs[-1][1], *step["requirements"])))
    return tuple(inputs)


def _rendered(
    spec: ImageSpec,
    delivery: Delivery,
    labels: tuple[tuple[str, str], ...],
    *,
    lock: Lock | None = None,
    resolving: _Resolving | None = None,
    uv_pins: tuple[str, ...] = (),
) -> BuildContext:
    files = [
        dataclasses.replace(file, path=f"{folder}/{file.path}")
        for folder, some in ((HOST_FOLDER, delivery.files), (LATE_FOLDER, delivery.late))
        for file in some
    ]
    return BuildContext(
        dockerfile=_template().render(
            **_variables(spec, delivery, lock),
            labels=labels,
            resolving=resolving,
            uv_pins=tuple(it.pin for it in lock.of_step("installer")) if lock else uv_pins,
            **_locked_variables(lock),
        ),
        files=tuple(sorted(files, key=lambda file: file.path)),
        labels=labels,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A Linux distribution the recipe knows: its code name and the Python it ships."""

    codename: str
    python: PythonVersion
    pattern: re.Pattern[str]


_DISTRIBUTIONS = tuple(
    Distribution(
        codename=codename,
        python=PythonVersion.parse(python),
        pattern=re.compile(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9.])"),
    )
    for codename, python, pattern in (
        ("bookworm", "3.11", r"bookworm|debian:12(?:\.[0-9]+)?"),
        ("trixie", "3.13", r"trixie|debian:13(?:\.[0-9]+)?"),
        ("jammy", "3.10", r"jammy|ubuntu:?22\.04"),
        ("noble", "3.12", r"noble|ubuntu:?24\.04"),
    )
)


def distribution_of(base_image: str) -> Distribution | None:
    """Tell the distribution from the words of an image reference, ``None`` if they do not say."""
    return next((d for d in _DISTRIBUTIONS if d.pattern.search(base_image)), None)


def brings_its_python(spec: ImageSpec) -> bool:
    """Say whether the base image's distribution has the Python asked for; else uv brings it."""
    if spec.image.base is None:
        return spec.environment.python_source == "base"
    distribution = distribution_of(spec.image.base)
    return distribution is not None and distribution.python == spec.environment.python.truncate(2)


def base_image_of(spec: ImageSpec) -> str:
    """Return the image the recipe starts from."""
    return spec.image.base or spec.environment.base_image


def has_own_toolkit(spec: ImageSpec) -> bool:
    """Say whether the base image brings a CUDA toolkit: devel where no wheels carry nvcc."""
    environment = spec.environment
    return (
        environment.flavor == "devel"
        and environment.cuda is not None
        and not environment.devel_packages
    )


_NO_DOCUMENTATION = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
)
# What torch.compile never asks a compiler for: 120 MB of link-time optimisation, sanitizers,
# profilers, static libraries and the library that embeds Python. The devel flavor keeps all of it.
_SMALL_COMPILER = (
    "path-exclude=/usr/bin/*-dwp",
    "path-exclude=/usr/bin/*-lto-dump*",
    "path-exclude=/usr/bin/*gprofng*",
    "path-exclude=/usr/bin/*ld.gold",
    "path-exclude=/usr/lib/*/gprofng/*",
    "path-exclude=/usr/lib/*/libc.a",
    "path-exclude=/usr/lib/*/libgprofng.so*",
    "path-exclude=/usr/lib/*/libm-*.a",
    "path-exclude=/usr/lib/*/libmvec.a",
    "path-exclude=/usr/lib/*/lib*san.so*",
    "path-exclude=/usr/lib/*/libpython3*.a",
    "path-exclude=/usr/lib/*/libpython3*.so*",
    "path-exclude=/usr/lib/gcc/*/lib*san.a",
    "path-exclude=/usr/lib/gcc/*/libstdc++.a",
    "path-exclude=/usr/lib/gcc/*/lto1",
    "path-exclude=/usr/lib/python3*/config-*/libpython3*.a",
    "path-exclude=/usr/libexec/gcc/*/lto1",
    "path-exclude=/usr/src/python3*",
)
_APT_OPTIONS = (
    "Dir::Cache::Archives=/run/gpuenv/apt/archives",
    "Dir::State::Lists=/run/gpuenv/apt/lists",
    # A build that loses power starts again; syncing each file doubles the time.
    "DPkg::Options::=--force-unsafe-io",
)

_CUDA_PATTERN = "^(nvidia|cuda)-"
_LIBRARIES_PATTERN = "^nvidia-(cudnn|cusparselt|nccl|nvshmem)-"
# Two layers: the toolkit's own wheels change with CUDA alone, the libraries with torch as well.
_CUDA_LISTS = (
    ("toolkit.txt", "the CUDA toolkit's libraries, the only copy"),
    ("libraries.txt", "cuDNN, NCCL and what else is released apart from the toolkit"),
)
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_COMPILERS = {"runtime": ("g++", "gcc", "libc6-dev"), "devel": ("build-essential",)}

_JUPYTER = (
    "argon2-cffi",
    "ipywidgets",
    "jupyter-resource-usage",
    "jupyterlab",
    "jupyterlab-nvdashboard",
    "matplotlib",
)
# sshd forwards windows by xauth alone, and editors fetch what runs inside of them by wget.
_SSH = ("openssh-server", "rsync", "screen", "tmux", "wget", "xauth")
# From OpenSSH 9.8 on, a few failed logins shut an address out for a while; all who come to a
# container come from one, the engine's. An older sshd does not start if it reads of this.
_SSH_SHELL = (
    "mkdir -p /run/sshd; \\\n"
    "    if /usr/sbin/sshd -t -o PerSourcePenalties=no 2>/dev/null; then \\\n"
    "        echo 'PerSourcePenalties no' >/etc/ssh/gpuenv.conf; \\\n"
    "    fi; \\\n"
    "    rm -f /etc/ssh/ssh_host_*"
)


def _variables(spec: ImageSpec, delivery: Delivery, lock: Lock | None) -> dict[str, Any]:
    environment = spec.environment
    base = base_image_of(spec)
    python = environment.python.truncate(2)
    own_python = brings_its_python(spec)
    path_first = f"{VENV}/bin:{_toolkit_path(environment)}"
    names = {file.path for file in delivery.files}
    python_packages = (f"python{python}", f"python{python}-dev") if own_python else ()
    apt_options: tuple[str, ...] = _APT_OPTIONS
    if "ca.crt" in names:
        apt_options = (*apt_options, "Acquire::https::CAInfo=/run/gpuenv/ca.crt")
    return {
        "base_image": base,
        "apt_cache_id": f"gpuenv-apt-{_digest(base.encode())[:12]}",
        "apt_options": apt_options,
        "dpkg_config": (
            _NO_DOCUMENTATION
            if environment.flavor == "devel"
            else (*_NO_DOCUMENTATION, *_SMALL_COMPILER)
        ),
        "apt_mirror_sed": _apt_mirror_sed(delivery.apt_mirror),
        "system_packages": sorted(
            ("ca-certificates", *_COMPILERS[environment.flavor], *python_packages)
        ),
        "bootstrap_packages": (
            "ca-certificates",
            f"python{python}-venv" if own_python else "python3-venv",
        ),
        "bootstrap_python": f"python{python}" if own_python else "python3",
        "uv_requirement": UV_REQUIREMENT,
        "user": USER,
        "user_id": USER_ID,
        "home": HOME,
        "cache_folders": CACHE_FOLDERS,
        "venv": VENV,
        "constraints": CONSTRAINTS,
        "python": str(environment.python),
        "python_request": f"/usr/bin/python{python}" if own_python else str(environment.python),
        "own_python": own_python,
        "path": f"{path_first}${{PATH:-{_DEFAULT_PATH}}}",
        "path_first": path_first,
        "cuda_lists": _CUDA_LISTS if environment.cuda else (),
        "cuda_major": environment.cuda.major if environment.cuda else None,
        "link_toolkit": bool(environment.devel_packages) and environment.flavor == "devel",
        "small": environment.flavor == "runtime",
        "host_folder": HOST_FOLDER if delivery.files else None,
        "host_constraints": "constraints.txt" in names,
        "host_digest": content_digest(delivery.files),
        "late_folder": LATE_FOLDER if delivery.late else None,
        "late_digest": content_digest(delivery.late),
        "certificate_digest": content_digest(
            tuple(file for file in delivery.files if file.path == "ca.crt")
        )
        if "ca.crt" in names
        else None,
        "host_environ": _host_environ(delivery, names),
        "torch_requirements": _first_requirements(spec, delivery, lock),
        "overrides": _overrides(environment),
        "torch_index_option": _torch_index_option(environment, delivery, lock),
        "cuda_pattern": _CUDA_PATTERN,
        "libraries_pattern": _LIBRARIES_PATTERN,
        "constrained_pattern": _CONSTRAINED_PATTERN,
        "warm_up": _warm_up(spec, _first_requirements(spec, delivery, lock)),
        "steps": [step | {"list": _list_of(step, lock)} for step in _steps(spec)],
        "workdir": spec.image.workdir,
        "environment": _image_environ(spec),
    }


_CONSTRAINED_PATTERN = (
    "^(torch|torchvision|torchaudio|triton|pytorch-triton|(nvidia|cuda)-[a-z0-9-]+)=="
)
# The kernel takes 128 KiB for one argument, and a step's whole script is one.
_LINES_A_STEP = 400


def _first_requirements(spec: ImageSpec, delivery: Delivery, lock: Lock | None) -> tuple[str, ...]:
    if lock is None:
        return torch_requirements(spec, delivery)
    return tuple(package.requirement for package in lock.of_step("torch"))


def _list_of(step: dict[str, Any], lock: Lock | None) -> str | None:
    """Return the name of the list that a step installs from a lock; ``None`` where none does."""
    if lock is None or not step["requirements"] or not lock.of_step(step["name"]):
        return None
    return f"{step['name']}.txt"


def _locked_variables(lock: Lock | None) -> dict[str, Any]:
    if lock is None:
        return {"locked_lists": (), "hashes_option": ""}
    first = lock.of_step("torch")
    cuda = [it for it in first if re.match(_CUDA_PATTERN, it.pin)]
    libraries = [it for it in cuda if re.match(_LIBRARIES_PATTERN, it.pin)]
    lists = {
        "toolkit.txt": [it.pin for it in cuda if it not in libraries],
        "libraries.txt": [it.pin for it in libraries],
        "torch.txt": [it.pin for it in first if it not in cuda],
        "constraints.txt": [
            it.requirement for it in first if re.match(_CONSTRAINED_PATTERN, it.requirement)
        ],
    }
    later: tuple[Step, ...] = ("jupyter", "packages")
    lists |= {
        f"{step}.txt": [it.pin for it in its] for step in later if (its := lock.of_step(step))
    }
    return {
        "locked_lists": tuple(_pieces(lists)),
        "hashes_option": " --require-hashes",
    }


def _pieces(lists: dict[str, list[str]]) -> Iterator[list[tuple[str, list[str]]]]:
    """Yield what each step writes: name and lines of lists, long ones in parts."""
    step: list[tuple[str, list[str]]] = []
    for file, lines in lists.items():
        left = lines
        while True:
            room = _LINES_A_STEP - sum(len(some) for _, some in step)
            step.append((file, left[:room]))
            left = left[room:]
            if not left:
                break
            yield step
            step = []
    yield step


def torch_requirements(spec: ImageSpec, delivery: Delivery | None = None) -> tuple[str, ...]:
    """Return what is asked of the installer for the row: torch, its companions, devel's compiler.

    A wheel of the PyTorch index carries its variant in its version (``2.9.1+cu128``), one of PyPI
    does not; in a wheel directory it may be either, so the file names decide.
    """
    environment = spec.environment
    wheels = [file.path.rpartition("/")[2] for file in (delivery or Delivery()).files]

    def requirement(name: str, version: str) -> str | None:
        local = f"{name}=={version}+{environment.torch_variant}"
        if environment.source == "pytorch":
            return local
        if environment.source == "pypi":
            return f"{name}=={version}"
        if any(wheel.startswith(local.replace("==", "-") + "-") for wheel in wheels):
            return local
        if name == "torch" or any(wheel.startswith(f"{name}-{version}-") for wheel in wheels):
            return f"{name}=={version}"
        return None

    versions = {"torchvision": environment.torchvision, "torchaudio": environment.torchaudio}
    found = [requirement("torch", str(environment.torch))]
    for companion in spec.image.companions:
        version = versions[companion]
        found.append(requirement(companion, version) if version else None)
    if environment.flavor == "devel":
        found += (*environment.devel_packages, "ninja")  # torch.utils.cpp_extension calls it
    # torch imports without NumPy, but warns, and half of its users' code needs it anyway. Wheels
    # before 2.3 were built against NumPy 1 and do not load NumPy 2.
    found.append("numpy<2" if environment.torch < _FIRST_WITH_NUMPY_2 else "numpy")
    found.append("pip")
    return tuple(line for line in found if line)


_FIRST_WITH_NUMPY_2 = TorchVersion((2, 3))


def _overrides(environment: EnvironmentSpec) -> tuple[str, ...]:
    return tuple(f"{wheel}=={version}" for wheel, version in environment.overrides)


def _torch_index_option(environment: EnvironmentSpec, delivery: Delivery, lock: Lock | None) -> str:
    # A lock may come from where a folder had the wheel; its version tells which index has it too.
    variants = () if lock is None else lock.of_step("torch")
    elsewhere = any(it.name == "torch" and "+" in it.version for it in variants)
    if environment.source != "pytorch" and not elsewhere:
        return ""
    if delivery.torch_index_delivered or (elsewhere and delivery.files):
        return ""
    return f" --extra-index-url {shlex.quote(f'{PYTORCH_INDEX}/{environment.torch_variant}')}"


def _toolkit_path(environment: EnvironmentSpec) -> str:
    return "/usr/local/cuda/bin:" if environment.flavor == "devel" and environment.cuda else ""


def _warm_up(spec: ImageSpec, requirements: tuple[str, ...]) -> str:
    modules = ["torch", "torch._inductor.compile_fx"]
    modules += [
        companion
        for companion in spec.image.companions
        if any(line.startswith(f"{companion}==") for line in requirements)
    ]
    return f"import {', '.join(modules)}"


def recipe_digest() -> str:
    """Return a digest of the recipe itself, so that a gpuenv with another one builds anew."""
    files = (images_dir() / TEMPLATE, package_dir() / "render.py")
    return _digest(b"".join(path.read_bytes() for path in files))


def later_requirements(spec: ImageSpec) -> tuple[str, ...]:
    """Return what is installed beside the row: JupyterLab, and what the user asked for."""
    return tuple(line for step in _steps(spec) for line in step["requirements"])


def _steps(spec: ImageSpec) -> tuple[dict[str, Any], ...]:
    image = spec.image
    steps: list[dict[str, Any]] = []
    if "jupyter" in image.features:
        steps.append(
            {
                "name": "jupyter",
                "title": "JupyterLab",
                "apt": (),
                "shell": "",
                "requirements": _JUPYTER,
            }
        )
    if "ssh" in image.features:
        steps.append(
            {
                "name": "ssh",
                "title": "an SSH server; its host key comes with each environment",
                "apt": _SSH,
                "shell": _SSH_SHELL,
                "requirements": (),
            }
        )
    requirements = tuple(dict.fromkeys((*image.requirements, *image.pip)))
    if image.apt or requirements:
        steps.append(
            {
                "name": "packages",
                "title": "the packages asked for",
                "apt": image.apt,
                "shell": "",
                "requirements": requirements,
            }
        )
    return tuple(steps)


def _image_environ(spec: ImageSpec) -> tuple[tuple[str, str], ...]:
    environment = spec.environment
    values = {
        "CUDA_CACHE_PATH": f"{HOME}/.cache/nv",
        "HOME": HOME,
        "LOGNAME": USER,
        "PIP_CONSTRAINT": CONSTRAINTS,
        "PIP_ROOT_USER_ACTION": "ignore",
        "TORCHINDUCTOR_CACHE_DIR": f"{HOME}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{HOME}/.cache/triton",
        "USER": USER,
        "UV_CONSTRAINT": CONSTRAINTS,
    }
    if environment.cuda is not None:
        values["NVIDIA_VISIBLE_DEVICES"] = "all"
        values["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        if not has_own_toolkit(spec):
            # Minor-version compatibility: any driver of the same CUDA major runs the wheels. No
            # clauses by brand as in nvidia/cuda: they admit older data-center drivers on the
            # strength of the forward-compatibility package, which is not in these images.
            values["NVIDIA_REQUIRE_CUDA"] = f"cuda>={environment.cuda.major}.0"
        if environment.flavor == "devel":
            values["CUDA_HOME"] = "/usr/local/cuda"
    values.update(spec.image.env)
    return tuple(sorted(values.items()))


def render_labels(spec: ImageSpec, *, lock: Lock | None = None) -> tuple[tuple[str, str], ...]:
    """Return the image's labels, sorted by name; with a lock, also which one."""
    environment = spec.environment
    values = {
        "org.opencontainers.image.base.name": base_image_of(spec),
        "org.opencontainers.image.description": (
            f"PyTorch {environment.torch} ({environment.torch_variant}), "
            f"Python {environment.python}, {environment.flavor}"
        ),
        "org.opencontainers.image.title": spec.image.name,
        "org.gpuenv.features": ",".join(spec.image.features),
        "org.gpuenv.python": str(environment.python),
        "org.gpuenv.spec": _label_json(spec.as_dict()),
        "org.gpuenv.torch": str(environment.torch),
        "org.gpuenv.torch-variant": environment.torch_variant,
        "org.gpuenv.version": __version__,
    }
    if lock is not None:
        values["org.gpuenv.lock"] = lock.digest
        values["org.opencontainers.image.base.name"] = lock.base.image
        if lock.base.digest is not None:
            values["org.opencontainers.image.base.digest"] = lock.base.digest
    return tuple(sorted(values.items()))


def _label_json(value: object) -> str:
    """Write JSON in which no backslash stands before a quote: parsers differ in reading those."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    text = re.sub(r'\\(["\\])', lambda match: f"\\u{ord(match[1]):04x}", text)
    return text.replace("$", "\\u0024")


def content_digest(files: tuple[ContextFile, ...]) -> str:
    """Return a digest of what public files hold; secrets and files on disk count by name alone.

    Files on disk are wheels and certificates: a wheel's name says what it is, and reading gigabytes
    is not rendering. The engine digests their content itself.
    """
    state = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.path):
        state.update(file.path.encode() + b"\0")
        if file.data is not None and not file.secret:
            state.update(hashlib.sha256(file.data).digest())
    return state.hexdigest()


def _host_environ(delivery: Delivery, names: set[str]) -> tuple[tuple[str, str], ...]:
    values: dict[str, str] = {}
    if "pip.conf" in names:
        values["PIP_CONFIG_FILE"] = f"{HOST_MOUNT}/pip.conf"
    if "uv.toml" in names:
        values["UV_CONFIG_FILE"] = f"{HOST_MOUNT}/uv.toml"
    if "ca.crt" in names:
        values |= dict.fromkeys(
            ("CURL_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"),
            f"{HOST_MOUNT}/ca.crt",
        )
    values.update(delivery.environ)
    return tuple(sorted(values.items()))


def _apt_mirror_sed(mirror: str | None) -> str | None:
    """Return the sed script that puts a mirror in place of the distribution's archive.

    Debian's security archive stands beside the main one, ``…/debian-security``; Ubuntu's is a suite
    of the same archive. Mirrors follow that.
    """
    if mirror is None:
        return None
    url = mirror.rstrip("/")
    host = r"https?://[a-z0-9.-]+"
    return (
        f"s#{host}/debian-security/?( |$)#{url}-security\\1#g;"
        f"s#{host}/(debian|ubuntu|ubuntu-ports)/?( |$)#{url}\\2#g"
    )


def quoted(value: str) -> str:
    r"""Quote a value for ENV, LABEL and WORKDIR, where ``$`` would expand and ``\\`` escape."""
    escaped = re.sub(r'(["$\\])', r"\\\1", value)
    return f'"{escaped}"'


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a Dockerfile is no HTML; the filters below quote
    )
    environment.filters["sh"] = shlex.quote
    environment.filters["quoted"] = quoted
    return environment.from_string((images_dir() / TEMPLATE).read_text(encoding="utf-8"))
