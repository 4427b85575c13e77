"""What the error texts of torch, CUDA, NCCL and the compilers mean.

A text alone never decides: 802 and 999 each have several causes. A reading therefore names the
checks that hold the discriminating facts (``suspects``), and the diagnosis folds the finding under
whichever of them found something. Fragments are the stable part of a line, matched without case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.say import fix
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.checks.model import Confidence, Fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One error text and its meaning.

    Attributes:
        fragment: Stable part of the text.
        why: The likely cause, in words.
        suspects: Ids of the checks that can confirm it, the likeliest first.
        alternatives: What else prints the same text.
    """

    fragment: str
    why: str
    suspects: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    alternatives: tuple[str, ...] = ()
    confidence: Confidence = "likely"


_CLEAN_LD_PATH = fix(
    "container",
    "start without the other libraries in front of the wheel's own",
    "env -u LD_LIBRARY_PATH python ...",
)
_MORE_SHM = fix("container", "give it more shared memory", "docker run --shm-size=8g ...")
_SHM_FULL = "the shared memory at /dev/shm is full: containers have 64 MiB unless told otherwise"
_COMPILER = fix("image", "install a compiler", "apt-get install -y gcc g++")
_HEADERS = fix("image", "install the headers of this Python", "apt-get install -y python3-dev")
_EXECUTABLE_TMP = fix(
    "container",
    "point the caches to a folder from which files may be mapped as code",
    "export TMPDIR=/var/tmp TORCHINDUCTOR_CACHE_DIR=/var/tmp/inductor "
    "TRITON_CACHE_DIR=/var/tmp/triton",
)

READINGS: tuple[Reading, ...] = (
    # --- CUDA comes up, or does not ---
    Reading(
        fragment="Found no NVIDIA driver on your system",
        why="libcuda.so.1 could not be loaded: no driver here, or none was passed in",
        suspects=("ctk.libs", "host.driver.module", "host.nodes", "drv.*"),
    ),
    Reading(
        fragment="The NVIDIA driver on your system is too old",
        why="the driver's CUDA is older than the one torch was built for; torch says this for "
        "every other failure of cuInit too, so look at the raw code",
        suspects=("drv.cuda", "drv.compat"),
    ),
    Reading(
        fragment="Torch not compiled with CUDA enabled",
        why="this torch is a CPU build",
        suspects=("torch.cpu_build", "torch.swapped"),
        confidence="certain",
    ),
    Reading(
        fragment="No CUDA GPUs are available",
        why="the driver is there and shows this process no GPU",
        suspects=("vis.cvd", "mig.state", "host.nodes", "ctk.uvm"),
    ),
    Reading(
        fragment="CUDA driver is a stub library",
        why="the toolkit's stub of libcuda, meant for linking only, was loaded",
        suspects=("env.ldpath", "host.driver.twolibs"),
        fixes=(fix("container", "take .../lib64/stubs out of LD_LIBRARY_PATH"),),
        confidence="certain",
    ),
    Reading(
        fragment="CUDA driver initialization failed",
        why="the driver cannot start: its module or its device nodes are not usable",
        suspects=("host.driver.module", "host.nodes", "host.hmm", "host.kernel*"),
    ),
    Reading(
        fragment="busy or unavailable",
        why="another process holds the GPU in exclusive mode, or the GPU has failed",
        suspects=("mode.compute", "host.gpu.lost", "hw.*", "mig.state"),
    ),
    Reading(
        fragment="system not yet initialized",
        why="the NVSwitch fabric is not ready, or a second libcuda is in the way",
        suspects=("host.fabricmanager", "host.driver.twolibs", "host.hmm"),
        fixes=(
            fix("host", "start the fabric manager", "systemctl enable --now nvidia-fabricmanager"),
        ),
        alternatives=("memory of the GPU cannot be mapped (HMM with KASLR)",),
    ),
    Reading(
        fragment="unsupported display driver / cuda driver combination",
        why="libcuda and the kernel module are of different releases",
        suspects=("host.driver.match", "drv.compat", "host.driver.twolibs"),
    ),
    Reading(
        fragment="forward compatibility was attempted on non supported HW",
        why="a forward-compatibility libcuda was loaded on a GPU that does not allow it",
        suspects=("drv.compat", "host.driver.match"),
        fixes=(
            fix("image", "remove the compatibility package", "apt-get purge -y 'cuda-compat-*'"),
        ),
        alternatives=("the driver was upgraded and the machine not rebooted",),
    ),
    Reading(
        fragment="CUDA unknown error",
        why="the device node nvidia-uvm is missing, denied or dead after a suspend",
        suspects=("ctk.uvm", "host.uvm", "cgroup.lost", "host.nodes"),
        alternatives=("CUDA_VISIBLE_DEVICES was changed after the program had started",),
    ),
    Reading(
        fragment="no kernel image is available for execution",
        why="this torch carries no code for this GPU",
        suspects=("torch.arch",),
        fixes=(fix("image", "choose a wheel that has it", "gpuenv matrix resolve --gpu NAME"),),
        confidence="certain",
    ),
    Reading(
        fragment="is not compatible with the current PyTorch installation",
        why="this torch carries no code for this GPU",
        suspects=("torch.arch",),
        fixes=(fix("image", "choose a wheel that has it", "gpuenv matrix resolve --gpu NAME"),),
        confidence="certain",
    ),
    Reading(
        fragment="PTX was compiled with an unsupported toolchain",
        why="the driver is older than the toolkit that made this PTX and cannot compile it",
        suspects=("drv.cuda", "torch.arch"),
        fixes=(fix("host", "install a driver of the toolkit's own release or newer"),),
    ),
    Reading(
        fragment="invalid device ordinal",
        why="a process asks for a GPU number beyond those it can see",
        suspects=("vis.cvd", "nccl.dup_gpu"),
    ),
    Reading(
        fragment="uncorrectable ECC error",
        why="the GPU's memory is damaged",
        suspects=("hw.ecc", "hw.remap", "hw.xid"),
        fixes=(fix("host", "drain the machine, reset the GPU, and replace it if it comes back"),),
        confidence="certain",
    ),
    Reading(
        fragment="an illegal memory access was encountered",
        why="a kernel wrote outside its memory: a fault of the software, or of the hardware",
        suspects=("hw.xid", "hw.ecc"),
        confidence="possible",
    ),
    Reading(
        fragment="CUDA out of memory",
        why="others hold the GPU's memory",
        suspects=("mem.free",),
        fixes=(fix("host", "see who holds it", "nvidia-smi"),),
    ),
    # --- libraries ---
    Reading(
        fragment="CUBLAS_STATUS_NOT_INITIALIZED",
        why="cuBLAS could not start, mostly for want of GPU memory",
        suspects=("mem.free", "torch.libs", "env.ldpath"),
    ),
    Reading(
        fragment="CUBLAS_STATUS_ALLOC_FAILED",
        why="cuBLAS could not get GPU memory",
        suspects=("mem.free", "torch.libs"),
    ),
    Reading(
        fragment="cuDNN version incompatibility",
        why="an older cuDNN than torch was built with was loaded",
        suspects=("torch.libs", "env.ldpath"),
        fixes=(_CLEAN_LD_PATH,),
        confidence="certain",
    ),
    Reading(
        fragment="Could not load library libcudnn",
        why="cuDNN's parts come from different installations",
        suspects=("torch.libs", "env.ldpath", "torch.nccl.dup"),
        fixes=(_CLEAN_LD_PATH,),
    ),
    Reading(
        fragment="CUDNN_STATUS_NOT_INITIALIZED",
        why="cuDNN could not start: memory, or parts of another installation",
        suspects=("mem.free", "torch.libs"),
    ),
    Reading(
        fragment="__nvJitLink",
        why="another libnvJitLink stands in front of the wheel's own",
        suspects=("torch.libs", "env.ldpath"),
        fixes=(_CLEAN_LD_PATH,),
    ),
    Reading(
        fragment="undefined symbol: nccl",
        why="an NCCL other than the wheel's was loaded, or two NCCL wheels overwrote one another",
        suspects=("torch.nccl.dup", "torch.nccl.which", "env.ldpath"),
        fixes=(
            fix(
                "image",
                "remove the system's NCCL, or reinstall the one wheel that torch asks for",
                "pip install --force-reinstall nvidia-nccl-cu13",
            ),
        ),
    ),
    Reading(
        fragment="failed to map segment from shared object",
        why="the file lies on a file system mounted noexec",
        suspects=("cc.tmp", "shm.exec"),
        fixes=(_EXECUTABLE_TMP,),
        confidence="certain",
    ),
    # --- processes and shared memory ---
    Reading(
        fragment="Bus error",
        why=_SHM_FULL,
        suspects=("shm.size",),
        fixes=(_MORE_SHM,),
    ),
    Reading(
        fragment="insufficient shared memory",
        why=_SHM_FULL,
        suspects=("shm.size",),
        fixes=(_MORE_SHM,),
    ),
    Reading(
        fragment="unable to allocate shared memory",
        why=_SHM_FULL,
        suspects=("shm.size",),
        fixes=(_MORE_SHM,),
    ),
    Reading(
        fragment="received 0 items of ancdata",
        why="the limit of open files is too low for tensors shared between processes",
        suspects=("sys.fd",),
        fixes=(fix("container", "raise the limit", "docker run --ulimit nofile=65536 ..."),),
    ),
    Reading(
        fragment="Too many open files",
        why="the limit of open files is too low",
        suspects=("sys.fd",),
        fixes=(fix("container", "raise the limit", "docker run --ulimit nofile=65536 ..."),),
    ),
    # --- NCCL and gloo ---
    Reading(
        fragment="Error while creating shared memory segment",
        why="NCCL found no room in /dev/shm",
        suspects=("shm.size",),
        fixes=(_MORE_SHM,),
    ),
    Reading(
        fragment="No space left on device",
        why="a file system is full; for a file named nccl-... it is /dev/shm",
        suspects=("shm.size", "sys.disk", "cc.tmp"),
    ),
    Reading(
        fragment="ibv_reg_mr",
        why="RDMA needs locked memory and the limit is too low",
        suspects=("lim.memlock",),
        fixes=(fix("container", "lift the limit", "docker run --ulimit memlock=-1 ..."),),
    ),
    Reading(
        fragment="no socket interface found",
        why="NCCL_SOCKET_IFNAME names no interface that exists here",
        suspects=("nccl.ifname", "nccl.env"),
        fixes=(fix("container", "unset it or name one", "unset NCCL_SOCKET_IFNAME"),),
    ),
    Reading(
        fragment="is neither AF_INET",
        why="the interface NCCL was told to use has no IP address",
        suspects=("nccl.ifname", "nccl.env"),
        fixes=(fix("container", "unset it or name another", "unset NCCL_SOCKET_IFNAME"),),
    ),
    Reading(
        fragment="Unable to find address for",
        why="GLOO_SOCKET_IFNAME names no interface that exists here",
        suspects=("nccl.ifname", "nccl.env"),
        fixes=(fix("container", "unset it or name one", "unset GLOO_SOCKET_IFNAME"),),
        confidence="certain",
    ),
    Reading(
        fragment="Duplicate GPU detected",
        why="two ranks chose the same GPU",
        suspects=("nccl.dup_gpu", "vis.cvd", "mig.nccl"),
        fixes=(
            fix("project", "bind each process to its own", "torch.cuda.set_device(local_rank)"),
        ),
        confidence="certain",
    ),
    Reading(
        fragment="unhandled system error",
        why="a system call failed inside NCCL: shared memory, sockets or locked memory",
        suspects=("shm.size", "nccl.env", "lim.memlock"),
    ),
    Reading(
        fragment="unhandled cuda error",
        why="CUDA failed inside NCCL",
        suspects=("torch.kernel", "p2p.copy", "shm.size"),
    ),
    # --- compiling ---
    Reading(
        fragment="Failed to find C compiler",
        why="Triton needs a C compiler at run time",
        suspects=("cc.gcc",),
        fixes=(_COMPILER,),
        confidence="certain",
    ),
    Reading(
        fragment="No working C++ compiler found",
        why="inductor needs a C++ compiler to make code for the CPU",
        suspects=("cc.gcc",),
        fixes=(_COMPILER,),
        confidence="certain",
    ),
    Reading(
        fragment="InvalidCxxCompiler",
        why="inductor needs a C++ compiler to make code for the CPU",
        suspects=("cc.gcc",),
        fixes=(_COMPILER,),
        confidence="certain",
    ),
    Reading(
        fragment="Python.h: No such file",
        why="the headers of the interpreter are missing; a virtual environment brings none",
        suspects=("cc.pyh",),
        fixes=(_HEADERS,),
        confidence="certain",
    ),
    Reading(
        fragment="cannot find -lcuda",
        why="the linker looks for libcuda.so and only libcuda.so.1 is there",
        suspects=("cc.libcuda",),
        fixes=(
            fix("image", "give the linker a name", "ln -s libcuda.so.1 /usr/local/lib/libcuda.so"),
        ),
    ),
    Reading(
        fragment="libcuda.so cannot found",
        why="Triton found no libcuda.so to link with",
        suspects=("cc.libcuda",),
        fixes=(fix("container", "name its folder", "export TRITON_LIBCUDA_PATH=/usr/lib64"),),
    ),
    Reading(
        fragment="is not defined for option 'gpu-name'",
        why="Triton's ptxas is older than the GPU",
        suspects=("cc.ptxas",),
        fixes=(
            fix(
                "image",
                "use the toolkit's ptxas",
                "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",
            ),
        ),
        confidence="certain",
    ),
    Reading(
        fragment="uid not found",
        why="the user has no name in this container, and the cache folder is named after the user",
        suspects=("ctr.uid",),
        fixes=(fix("container", "name the user or the folder", "export USER=me HOME=/tmp"),),
        confidence="certain",
    ),
    Reading(
        fragment="Cannot find a working triton installation",
        why="Triton is missing or broken",
        suspects=("torch.swapped", "pip.conflicts"),
        fixes=(fix("image", "install the triton that torch asks for", "pip install triton"),),
    ),
    Reading(
        fragment="Permission denied",
        why="a cache folder or temporary folder cannot be written by this user",
        suspects=("cc.tmp", "ctr.uid"),
        confidence="possible",
    ),
    Reading(
        fragment="Read-only file system",
        why="a cache folder lies on a read-only file system",
        suspects=("cc.tmp",),
        fixes=(_EXECUTABLE_TMP,),
    ),
)

UNREAD = Reading(fragment="", why="", confidence="possible")


def read(*texts: str) -> Reading:
    """Return the first reading whose fragment stands in one of the texts, in catalogue order."""
    whole = "\n".join(texts).lower()
    for reading in READINGS:
        if reading.fragment.lower() in whole:
            return reading
    return UNREAD
