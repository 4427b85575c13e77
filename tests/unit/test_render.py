"""What the recipe promises, asked of the rendered text; the whole texts are in tests/golden."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.render import content_digest, quoted, render_context, torch_requirements
from gpuenv.spec import ContextFile, Delivery, EnvironmentSpec, ImageRequest, ImageSpec
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

CUDA = EnvironmentSpec(
    torch=TorchVersion.parse("2.14.1"),
    torch_variant="cu130",
    cuda=CudaVersion.parse("13.0"),
    toolkit=CudaVersion.parse("13.0.3"),
    cudnn=CudnnVersion.parse("9.24.0.43"),
    nccl=NcclVersion.parse("2.30.7"),
    triton="~=3.8.0",
    torchvision="0.29.1",
    torchaudio=None,
    python=PythonVersion.parse("3.11"),
    arch="x86_64",
    arch_list=("sm_75", "sm_90"),
    min_driver=DriverRelease.parse("580.65.06"),
    base_image="debian:bookworm-slim",
    source="pypi",
    confidence="verified",
)
CPU = dataclasses.replace(
    CUDA, torch_variant="cpu", cuda=None, toolkit=None, cudnn=None, nccl=None, min_driver=None
)


def dockerfile(
    environment: EnvironmentSpec = CUDA, delivery: Delivery | None = None, **image: object
) -> str:
    request = dataclasses.replace(ImageRequest(), **image)  # type: ignore[arg-type]
    return render_context(ImageSpec(environment=environment, image=request), delivery).dockerfile


def before_content(text: str) -> str:
    """Return the part that must not change when only the content on top does."""
    titled = re.compile(
        r"RUN (?:--mount\S+ \\\n +)*: '?(?:JupyterLab|an SSH|the packages|the work)"
    )
    return titled.split(text)[0]


def test_same_spec_gives_the_same_bytes() -> None:
    assert dockerfile(pip=("einops",)) == dockerfile(pip=("einops",))


@pytest.mark.parametrize(
    "content",
    [
        {"pip": ("einops",)},
        {"apt": ("git",)},
        {"features": ("jupyter",)},
        {"env": (("A", "1"),)},
        {"workdir": "/srv/app"},
        {"requirements": ("einops",)},
    ],
    ids=lambda content: next(iter(content)),
)
def test_content_leaves_the_steps_of_torch_alone(content: dict[str, object]) -> None:
    assert before_content(dockerfile(**content)) == before_content(dockerfile())


def test_late_wheel_leaves_the_steps_of_torch_alone() -> None:
    settings = ContextFile(path="uv.toml", data=b"")
    late = ContextFile(path="a-1-py3-none-any.whl", data=b"x")
    without = dockerfile(delivery=Delivery(files=(settings,)), pip=("a",))
    with_wheel = dockerfile(delivery=Delivery(files=(settings,), late=(late,)), pip=("a",))
    assert before_content(without) == before_content(with_wheel)
    assert "--find-links /run/gpuenv/late" in with_wheel


def test_new_torch_on_the_same_cuda_changes_the_lock_and_no_step_that_installs() -> None:
    older = dataclasses.replace(CUDA, torch=TorchVersion.parse("2.13.0"), torchvision="0.28.0")
    final = [text.split("FROM system\n")[1].split("LABEL")[0] for text in
             (dockerfile(CUDA), dockerfile(older))]  # fmt: skip
    assert final[0] == final[1]


def test_change_of_settings_leaves_the_system_step_alone() -> None:
    def system(data: bytes) -> str:
        delivery = Delivery(files=(ContextFile(path="uv.toml", data=data),))
        return dockerfile(delivery=delivery).split(" AS uv")[0]

    assert system(b"a") == system(b"b")


def test_secret_is_neither_in_the_text_nor_in_a_digest() -> None:
    def delivery(data: bytes) -> Delivery:
        return Delivery(files=(ContextFile(path="pip.conf", data=data, secret=True),))

    one, other = (dockerfile(delivery=delivery(d)) for d in (b"hunter2", b"other"))
    assert one == other
    assert "hunter2" not in one
    assert "hunter2" not in repr(delivery(b"hunter2"))


def test_public_file_counts_by_content() -> None:
    digests = {content_digest((ContextFile(path="a", data=d),)) for d in (b"1", b"2")}
    assert len(digests) == 2


def test_template_keeps_to_what_every_engine_builds() -> None:
    text = dockerfile(features=("jupyter", "ssh"), pip=("einops",), apt=("git",))
    assert "# syntax" not in text
    assert "HEALTHCHECK" not in text
    assert not re.search(r"<<-?['\"]?[A-Z]", text), "heredoc"
    assert "--link " not in text.replace("--find-links", "")
    assert "RUN --network" not in text
    mounts = re.findall(r"--mount=(\S+)", text)
    assert mounts
    assert all(mount.startswith("type=") for mount in mounts)


def test_no_step_is_broken_by_an_empty_line() -> None:
    for environment in (CPU, CUDA, dataclasses.replace(CUDA, python_source="managed")):
        lines = dockerfile(environment, features=("jupyter", "ssh"), pip=("a",)).splitlines()
        for number, line in enumerate(lines[:-1]):
            assert not (line.endswith("\\") and not lines[number + 1].strip()), lines[number]


def test_spec_stands_in_the_label_and_comes_back() -> None:
    image = ImageRequest(env=(("G", "a \"b\" $c \\d 'e' ü"),), pip=("einops",))
    spec = ImageSpec(environment=CUDA, image=image)
    context = render_context(spec)
    labels = dict(context.labels)
    assert json.loads(labels["org.gpuenv.spec"]) == spec.as_dict()
    assert f"org.gpuenv.spec={quoted(labels['org.gpuenv.spec'])}" in context.dockerfile


def test_value_is_quoted_so_that_nothing_expands() -> None:
    assert quoted('a "b" $c \\d') == '"a \\"b\\" \\$c \\\\d"'
    assert 'A="\\$(id) \\${HOME}"' in dockerfile(env=(("A", "$(id) ${HOME}"),))


def test_shell_word_is_quoted() -> None:
    assert "        'transformers>=5' \\" in dockerfile(pip=("transformers>=5",))


def test_gpu_variables_are_set_for_cuda_alone() -> None:
    assert 'NVIDIA_REQUIRE_CUDA="cuda>=13.0"' in dockerfile(CUDA)
    assert 'NVIDIA_DRIVER_CAPABILITIES="compute,utility"' in dockerfile(CUDA)
    assert "NVIDIA_" not in dockerfile(CPU)


def test_devel_image_of_nvidia_keeps_its_own_requirement_on_the_driver() -> None:
    environment = dataclasses.replace(
        CUDA,
        torch_variant="cu126",
        cuda=CudaVersion.parse("12.6"),
        flavor="devel",
        base_image="nvidia/cuda:12.6.3-devel-ubuntu24.04",
    )
    text = dockerfile(environment)
    assert "NVIDIA_REQUIRE_CUDA" not in text
    assert 'CUDA_HOME="/usr/local/cuda"' in text
    assert "ln -s" not in text


def test_devel_wheels_become_a_toolkit() -> None:
    environment = dataclasses.replace(
        CUDA, flavor="devel", devel_packages=("nvidia-cuda-nvcc==13.0.88.*",)
    )
    text = dockerfile(environment)
    assert "'nvidia-cuda-nvcc==13.0.88.*' \\" in text
    assert 'ln -s "$toolkit" /usr/local/cuda' in text
    assert "path-exclude=/usr/lib/gcc/*/lto1" not in text, "devel keeps the whole compiler"


@pytest.mark.parametrize(
    ("source", "wheels", "wanted"),
    [
        ("pypi", (), ("torch==2.14.1", "torchvision==0.29.1")),
        ("pytorch", (), ("torch==2.14.1+cu130", "torchvision==0.29.1+cu130")),
        ("wheelhouse", (), ("torch==2.14.1",)),
        (
            "wheelhouse",
            ("torch-2.14.1+cu130-cp311-cp311-linux_x86_64.whl",),
            ("torch==2.14.1+cu130",),
        ),
        (
            "wheelhouse",
            ("torchvision-0.29.1-cp311-cp311-linux_x86_64.whl",),
            ("torch==2.14.1", "torchvision==0.29.1"),
        ),
    ],
)
def test_wheels_are_asked_for_as_their_source_names_them(
    source: str, wheels: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    environment = dataclasses.replace(CUDA, source=source)  # type: ignore[arg-type]
    delivery = Delivery(files=tuple(ContextFile(path=f"wheels/{w}", data=b"") for w in wheels))
    found = torch_requirements(ImageSpec(environment=environment), delivery)
    assert tuple(line for line in found if line.startswith("torch")) == wanted


def test_old_torch_gets_the_numpy_it_was_built_for() -> None:
    old = dataclasses.replace(CUDA, torch=TorchVersion.parse("2.2.2"))
    assert "numpy<2" in torch_requirements(ImageSpec(environment=old))
    assert "numpy" in torch_requirements(ImageSpec(environment=CUDA))


def test_base_given_by_the_user_decides_where_python_comes_from() -> None:
    assert "python3.11-dev" in dockerfile(base="team/debian:12-slim")
    assert "python install" not in dockerfile(base="team/debian:12-slim")
    assert "python install" in dockerfile(base="team/anything:1")
    assert "python install" in dockerfile(base="ubuntu:24.04"), "its Python is 3.12"


def test_host_keys_are_not_in_an_ssh_image() -> None:
    assert "rm -f /etc/ssh/ssh_host_*" in dockerfile(features=("ssh",))


def test_requirement_for_another_torch_is_refused_before_the_build() -> None:
    with pytest.raises(ConfigurationError, match="another torch") as caught:
        dockerfile(pip=("torch==2.3.0",))
    assert "2.14.1+cu130" in caught.value.why
    assert dockerfile(pip=("torch>=2.10",))


@pytest.mark.parametrize(
    "image",
    [
        {"apt": ("git; id",)},
        {"pip": ("a\nRUN id",)},
        {"name": "a$(id)"},
        {"base": "a b"},
        {"workdir": "/a'b"},
        {"env": (("A", "1\nRUN id"),)},
    ],
    ids=lambda image: next(iter(image)),
)
def test_spec_that_nobody_checked_is_checked_before_the_template(image: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        dockerfile(**image)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a b", "a\nb", "$(id)"])
def test_file_of_a_delivery_stays_in_its_folder(path: str) -> None:
    with pytest.raises(ConfigurationError):
        dockerfile(delivery=Delivery(files=(ContextFile(path=path, data=b""),)))
