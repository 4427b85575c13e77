"""Real faults in real containers: made by the engine or the kernel, named by the doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.model import Level, Status
from gpuenv.doctor import judge, plan_doctor, run_doctor
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import build_image
from gpuenv.engine.protocol import (
    BindMount,
    BuildRequest,
    ContainerSpec,
    DeviceMapping,
    TmpfsMount,
)
from gpuenv.errors import ProbeError
from gpuenv.probing import ContainerPlace, ImagePlace, probe_sources, render_bundle
from tests.conftest import missing
from tests.engine_fixtures import BASE
from tests.fakes.libraries import build_libcuda, build_libnvidia_ml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuenv.checks.model import Diagnosis, Facts
    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

PYTHON = "localhost/gpuenv/doctor-test:python"
LIBRARIES = "/opt/driver"
SHM = 1 << 30


@pytest.fixture(scope="module")
def python_image(session_engine: ContainerEngine, base_image: str) -> Iterator[str]:
    """Return an image with nothing but Debian's Python."""
    dockerfile = (
        f"FROM {base_image}\nRUN apt-get update -qq && apt-get install -y -qq "
        "--no-install-recommends python3 && rm -rf /var/lib/apt/lists/*\n"
    )
    context = tar_bytes([Member(path="Dockerfile", content=dockerfile.encode())])
    build_image(session_engine, BuildRequest(context=context, tags=(PYTHON,)))
    yield PYTHON
    session_engine.untag(PYTHON, force=True)


@pytest.fixture
def torch_image(jupyter_image: str) -> str:
    """Return an image with torch for the CPU, as gpuenv itself builds it."""
    return jupyter_image


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stand-ins for the driver's libraries."""
    folder = tmp_path_factory.mktemp("driver")
    build_libcuda(folder)
    build_libnvidia_ml(folder)
    folder.chmod(0o755)  # the image's user is not the one who runs the tests
    return folder


class Patient:
    """A running container and what the doctor says of it."""

    def __init__(self, engine: ContainerEngine, labels: dict[str, str]) -> None:
        self.engine = engine
        self.labels = labels
        self.id = ""

    def start(self, image: str, **more: Any) -> Patient:
        spec = ContainerSpec(
            image=image,
            entrypoint=("sleep",),
            command=("3600",),
            labels=self.labels,
            init=True,
            **{"shm_bytes": SHM, **more},
        )
        self.id = self.engine.create(spec).id
        self.engine.start(self.id)
        return self

    def run(self, *command: str) -> None:
        done = self.engine.exec(self.id, command, user="0", timeout_s=60)
        assert done.exit_code == 0, done

    def facts(self, *require: str) -> Facts:
        plan = plan_doctor(level=Level.STATIC, require=require)
        return run_doctor(plan, ContainerPlace(engine=self.engine, container=self.id), _ignore)

    def diagnosis(self, *require: str) -> Diagnosis:
        return judge(self.facts(*require))


def _ignore(*_: object) -> None:
    """Take no notice of progress."""


@pytest.fixture
def patient(local_engine: ContainerEngine, run_labels: dict[str, str]) -> Patient:
    return Patient(local_engine, run_labels)


def with_driver(driver: Path, *nodes: str, **env: str) -> dict[str, Any]:
    """Return what a container with GPUs has: real device nodes, stand-in libraries."""
    return {
        "mounts": (BindMount(source=str(driver), target=LIBRARIES, read_only=True),),
        "env": {"LD_LIBRARY_PATH": LIBRARIES, **env},
        "devices": tuple(
            DeviceMapping(path="/dev/null", container_path=f"/dev/{node}") for node in nodes
        ),
    }


NODES = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def first(diagnosis: Diagnosis) -> str:
    return diagnosis.causes[0].result.id if diagnosis.causes else ""


def status_of(diagnosis: Diagnosis, check_id: str) -> Status:
    return next(result.status for result in diagnosis.results if result.id == check_id)


def causes_of_its_own(diagnosis: Diagnosis) -> set[str]:
    """Return the causes but one: how full the disk of the testing machine is."""
    return {cause.result.id for cause in diagnosis.causes} - {"sys.disk"}


def test_a_container_in_good_order_has_nothing_wrong(patient: Patient, python_image: str) -> None:
    diagnosis = patient.start(python_image).diagnosis()
    assert causes_of_its_own(diagnosis) == set()
    assert diagnosis.verdict == ("warn" if diagnosis.causes else "nothing-to-diagnose")


def test_docker_s_64_mib_of_shared_memory(patient: Patient, python_image: str) -> None:
    diagnosis = patient.start(python_image, shm_bytes=None).diagnosis()
    assert first(diagnosis) == "shm.size"
    assert "Docker's default of 64 MiB" in diagnosis.causes[0].result.summary


def test_full_shared_memory(patient: Patient, python_image: str) -> None:
    patient.start(python_image, shm_bytes=16 << 20)
    patient.engine.exec(
        patient.id, ("dd", "if=/dev/zero", "of=/dev/shm/left-over", "bs=1M"), timeout_s=60
    )
    diagnosis = patient.diagnosis()
    assert first(diagnosis) == "shm.size"
    assert "full" in diagnosis.causes[0].result.summary


def test_nodes_that_the_device_cgroup_denies(
    patient: Patient, python_image: str, driver: Path
) -> None:
    patient.start(python_image, **with_driver(driver, FAKE_NVML_INIT="999", FAKE_CUINIT="999"))
    for number, node in enumerate(("nvidia0", "nvidiactl", "nvidia-uvm")):
        patient.run("mknod", "-m", "666", f"/dev/{node}", "c", "195", str(number))
    facts = patient.facts()
    opened = facts.probes["host.nodes"].facts["nodes"]
    assert {node["errno"] for path, node in opened.items() if "tools" not in path} == {"EPERM"}
    diagnosis = judge(facts)
    assert first(diagnosis) == "cgroup.lost"
    assert "drv.cuinit" in [result.id for result in diagnosis.causes[0].consequences]


def test_a_compute_node_that_was_not_granted(
    patient: Patient, python_image: str, driver: Path
) -> None:
    patient.start(python_image, **with_driver(driver, *NODES[:2], FAKE_CUINIT="999"))
    patient.run("mknod", "-m", "666", "/dev/nvidia-uvm", "c", "510", "0")
    assert first(patient.diagnosis()) == "ctk.uvm"


def test_nodes_without_libraries(patient: Patient, python_image: str, driver: Path) -> None:
    given = with_driver(driver, *NODES)
    patient.start(python_image, devices=given["devices"])
    assert first(patient.diagnosis()) == "ctk.libs"


def test_a_gpu_closed_by_its_mode(patient: Patient, python_image: str, driver: Path) -> None:
    given = with_driver(driver, *NODES, FAKE_NVML_INIT="4", FAKE_CUINIT="100")
    patient.start(python_image, user="4321:4321", **given)
    for node in NODES:
        patient.run("chmod", "600", f"/dev/{node}")
    diagnosis = patient.diagnosis()
    assert first(diagnosis) == "host.nodes"
    assert diagnosis.causes[0].result.subject == "EACCES"


def test_memlock_where_there_is_infiniband(
    patient: Patient, python_image: str, tmp_path: Path
) -> None:
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/s",
        "link_layer": "InfiniBand",
    }
    for name, text in files.items():
        place = tmp_path / "class/infiniband/mlx5_0/ports/1" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    mount = BindMount(source=str(tmp_path / "class"), target="/sys/class", read_only=True)
    facts = patient.start(python_image, mounts=(mount,)).facts()
    if facts.probes["host.limits"].facts["rlimits"]["memlock"][0] == -1:
        missing("an engine that limits pinned memory")
    assert first(judge(facts)) == "lim.memlock"


def test_a_uid_that_the_image_does_not_know(patient: Patient, python_image: str) -> None:
    diagnosis = patient.start(python_image, user="4321:4321").diagnosis()
    assert first(diagnosis) == "ctr.uid"
    assert "4321 has no name" in diagnosis.causes[0].result.summary


def test_a_noexec_folder_for_temporary_files(patient: Patient, python_image: str) -> None:
    diagnosis = patient.start(
        python_image, mounts=(TmpfsMount(target="/tmp", size_bytes=1 << 30),)
    ).diagnosis()
    assert first(diagnosis) == "cc.tmp"
    assert "noexec" in diagnosis.causes[0].result.summary


def test_a_read_only_root_without_a_home(patient: Patient, python_image: str) -> None:
    facts = patient.start(python_image, read_only_root=True, env={"HOME": "/nonexistent"}).facts()
    assert {run.status for run in facts.probes.values()} == {"ok"}
    assert "cc.tmp" in [cause.result.id for cause in judge(facts).causes]


def test_few_processes_and_little_processor_time(patient: Patient, python_image: str) -> None:
    facts = patient.start(python_image, pids_limit=64, cpus=0.5).facts()
    cgroup = facts.probes["host.limits"].facts["cgroup"]
    if cgroup["pids_max"] is None:
        missing("an engine that limits processes")
    assert (cgroup["pids_max"], cgroup["cpu_quota"]) == (64, 0.5)
    assert causes_of_its_own(judge(facts)) == {"sys.pid", "sys.cpu"}


def test_stubs_on_the_library_path(
    patient: Patient, python_image: str, driver: Path, tmp_path: Path
) -> None:
    build_libcuda(tmp_path / "stubs", always=34)
    given = with_driver(driver, *NODES)
    stubs = "/usr/local/cuda/lib64/stubs"
    given["mounts"] += (BindMount(source=str(tmp_path / "stubs"), target=stubs, read_only=True),)
    given["env"]["LD_LIBRARY_PATH"] = f"{stubs}:{LIBRARIES}"
    diagnosis = patient.start(python_image, **given).diagnosis()
    assert first(diagnosis) == "env.ldpath"
    assert [result.id for result in diagnosis.causes[0].consequences] == ["drv.cuinit"]


def test_another_libcuda_before_the_driver_s(
    patient: Patient, python_image: str, driver: Path, tmp_path: Path
) -> None:
    build_libcuda(tmp_path / "vendor", always=803)
    given = with_driver(driver, *NODES)
    vendor = BindMount(source=str(tmp_path / "vendor"), target="/opt/vendor", read_only=True)
    given["mounts"] += (vendor,)
    given["env"]["LD_LIBRARY_PATH"] = "/opt/vendor"
    patient.start(python_image, **given)
    patient.run("sh", "-c", f"echo {LIBRARIES} > /etc/ld.so.conf.d/driver.conf && ldconfig")
    facts = patient.facts()
    assert facts.probes["host.cuda"].facts["again"]["without LD_LIBRARY_PATH"] == {
        "cu_init": 0,
        "count": 1,
    }
    diagnosis = judge(facts)
    assert first(diagnosis) == "env.ldpath"


def test_two_releases_of_the_driver_s_libraries(
    patient: Patient, python_image: str, driver: Path
) -> None:
    given = with_driver(driver, *NODES, FAKE_CUINIT="802")
    patient.start(python_image, **given)
    for release in ("570.86.10", "570.86.15"):
        patient.run("cp", f"{LIBRARIES}/libcuda.so.1", f"/usr/lib/libcuda.so.{release}")
    assert first(patient.diagnosis()) == "host.driver.twolibs"


def test_a_cpu_wheel_where_there_is_a_gpu(patient: Patient, torch_image: str, driver: Path) -> None:
    diagnosis = patient.start(torch_image, **with_driver(driver, *NODES)).diagnosis()
    assert first(diagnosis) == "torch.cpu_build"
    assert "2.13.0+cpu" in diagnosis.causes[0].result.summary


def test_a_torch_that_is_not_the_image_s(patient: Patient, torch_image: str) -> None:
    patient.start(torch_image)
    assert status_of(patient.diagnosis(), "torch.swapped") is Status.PASS
    patient.run("sh", "-c", "sed -i 's/^torch==.*/torch==2.12.1+cpu/' /opt/gpuenv/constraints.txt")
    diagnosis = patient.diagnosis()
    assert first(diagnosis) == "torch.swapped"
    assert "2.12.1+cpu became 2.13.0" in diagnosis.causes[0].result.summary


def test_no_compiler_where_compile_is_required(patient: Patient, torch_image: str) -> None:
    patient.start(torch_image)
    patient.run("sh", "-c", "rm -f /usr/bin/*gcc* /usr/bin/*g++* /usr/bin/c++* /usr/bin/cc")
    assert first(patient.diagnosis()) == "cc.gcc"
    diagnosis = patient.diagnosis("compile")
    assert (first(diagnosis), status_of(diagnosis, "cc.gcc")) == ("cc.gcc", Status.FAIL)


def test_no_python_headers(patient: Patient, torch_image: str) -> None:
    patient.start(torch_image)
    patient.run("sh", "-c", "find /usr/include -name Python.h -delete")
    assert first(patient.diagnosis()) == "cc.pyh"


def test_a_driver_library_that_dies_is_one_error(
    patient: Patient, python_image: str, driver: Path
) -> None:
    patient.start(python_image, **with_driver(driver, *NODES, FAKE_CUDA_DO="abort"))
    facts = patient.facts()
    cuda = facts.probes["host.cuda"]
    assert (cuda.status, "SIGABRT" in cuda.error) == ("crashed", True)
    assert cuda.facts["driver_cuda"] == 13000
    assert facts.probes["host.nvml"].status == "ok"
    diagnosis = judge(facts)
    assert [result.id for result in diagnosis.results if result.status is Status.ERROR] == [
        "run.probe"
    ]


def test_an_image_is_looked_at_in_a_container_that_goes_away(
    engine: ContainerEngine, python_image: str
) -> None:
    before = {info.id for info in engine.containers()}
    place = ImagePlace(engine=engine, image=python_image)
    facts = run_doctor(plan_doctor(level=Level.STATIC), place, _ignore)
    assert facts.where == {"kind": "image", "target": python_image, "gpu": False}
    assert {run.status for run in facts.probes.values()} == {"ok"}
    assert {info.id for info in engine.containers()} - before == set()


def test_an_image_without_python_says_so(engine: ContainerEngine) -> None:
    with pytest.raises(ProbeError) as caught:
        run_doctor(plan_doctor(level=Level.STATIC), ImagePlace(engine=engine, image=BASE), _ignore)
    assert "no Python" in caught.value.what


def test_the_one_file_runs_from_standard_input_in_an_image(
    patient: Patient, python_image: str
) -> None:
    text = render_bundle(plan_doctor(level=Level.STATIC), probe_sources(), version="0")
    patient.start(python_image, user="4321:4321", read_only_root=True)
    done = patient.engine.exec(
        patient.id, ("python3", "-"), stdin=text.encode(), timeout_s=60, user="4321:4321"
    )
    from gpuenv.checks.facts import parse_facts

    facts = parse_facts(done.stdout.decode())
    assert facts.complete
    assert {run.status for run in facts.probes.values()} == {"ok"}
    assert facts.probes["host.user"].facts["uid"] == 4321
