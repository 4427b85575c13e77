FROM debian:bookworm-slim@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd AS system
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-a4670961ed02,target=/run/gpuenv/apt,sharing=locked \
    : 'system packages, and the user dev'; \
    set -eu; \
    printf '%s\n' \
        'path-exclude=/usr/share/doc/*' \
        'path-include=/usr/share/doc/*/copyright' \
        'path-exclude=/usr/share/info/*' \
        'path-exclude=/usr/share/lintian/*' \
        'path-exclude=/usr/share/locale/*' \
        'path-exclude=/usr/share/man/*' \
        'path-exclude=/usr/bin/*-dwp' \
        'path-exclude=/usr/bin/*-lto-dump*' \
        'path-exclude=/usr/bin/*gprofng*' \
        'path-exclude=/usr/bin/*ld.gold' \
        'path-exclude=/usr/lib/*/gprofng/*' \
        'path-exclude=/usr/lib/*/libc.a' \
        'path-exclude=/usr/lib/*/libgprofng.so*' \
        'path-exclude=/usr/lib/*/libm-*.a' \
        'path-exclude=/usr/lib/*/libmvec.a' \
        'path-exclude=/usr/lib/*/lib*san.so*' \
        'path-exclude=/usr/lib/*/libpython3*.a' \
        'path-exclude=/usr/lib/*/libpython3*.so*' \
        'path-exclude=/usr/lib/gcc/*/lib*san.a' \
        'path-exclude=/usr/lib/gcc/*/libstdc++.a' \
        'path-exclude=/usr/lib/gcc/*/lto1' \
        'path-exclude=/usr/lib/python3*/config-*/libpython3*.a' \
        'path-exclude=/usr/libexec/gcc/*/lto1' \
        'path-exclude=/usr/src/python3*' \
        > /etc/dpkg/dpkg.cfg.d/gpuenv; \
    export DEBIAN_FRONTEND=noninteractive; \
    mkdir -p /run/gpuenv/apt/archives/partial /run/gpuenv/apt/lists/partial; \
    apt_get() { \
        apt-get --yes --quiet \
            -o Dir::Cache::Archives=/run/gpuenv/apt/archives \
            -o Dir::State::Lists=/run/gpuenv/apt/lists \
            -o DPkg::Options::=--force-unsafe-io \
            "$@"; \
    }; \
    apt_get update; \
    apt_get install --no-install-recommends \
        ca-certificates \
        g++ \
        gcc \
        libc6-dev \
        python3.11 \
        python3.11-dev; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache; \
    if name=$(id --name --user 1000); then userdel --remove "$name"; fi; \
    useradd --uid 1000 --user-group --groups 0 --shell /bin/bash --password '*' \
        --create-home --home-dir /home/dev dev; \
    for cache in huggingface nv pip torch torchinductor triton uv; do \
        mkdir -p /home/dev/.cache/"$cache"; \
    done; \
    chown -R dev:0 /home/dev; \
    chmod -R g=u /home/dev

# The installer, which runs beside the image and is not in it.
FROM debian:bookworm-slim@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd AS uv
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-a4670961ed02-uv,target=/run/gpuenv/apt,sharing=locked \
    : 'the installer'; \
    set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    mkdir -p /run/gpuenv/apt/archives/partial /run/gpuenv/apt/lists/partial; \
    apt_get() { \
        apt-get --yes --quiet \
            -o Dir::Cache::Archives=/run/gpuenv/apt/archives \
            -o Dir::State::Lists=/run/gpuenv/apt/lists \
            -o DPkg::Options::=--force-unsafe-io \
            "$@"; \
    }; \
    apt_get update; \
    apt_get install --no-install-recommends \
        ca-certificates \
        python3.11-venv; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache; \
    wheel=$(echo /usr/share/python-wheels/pip-*.whl); \
    printf '%s\n' \
        'uv==0.13.9 --hash=sha256:f04219d65817b5bd0dff7c9ee2ebf7d89c4159f105f0647c17c93aa510ce6e96' \
        > /tmp/uv.txt; \
    python3.11 "$wheel/pip" install --quiet --no-cache-dir --no-compile \
        --no-deps --require-hashes --target /tmp/uv --requirement /tmp/uv.txt; \
    install -D /tmp/uv/bin/uv /opt/uv/uv; \
    rm -r /tmp/uv

# What exactly to install, as gpuenv.lock has it. A new torch on the same CUDA has the same lists of
# CUDA wheels, so their layers stay.
FROM debian:bookworm-slim@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd AS lock
RUN : 'the lock'; \
    set -eu; \
    mkdir -p /lock; \
    printf '%s\n' \
        'cuda-bindings==13.0.3 --hash=sha256:50ead24a53bd4b1031754a0f15b57a412817609904968c354913924d2e554033' \
        'nvidia-cublas==13.1.1.3 --hash=sha256:0912e7d27688539813061ea7b3b9b884317cf78e1700cd756f02aeb3a2dd3ad9' \
        >> /lock/toolkit.txt; \
    printf '%s\n' \
        'nvidia-cudnn-cu13==9.20.0.48 --hash=sha256:34a64022cf845470792cb9d5a52b755f8e22661cd42c668f802ed104f01360e3' \
        'nvidia-nccl-cu13==2.29.7 --hash=sha256:d469e00e7f5253abf6d208b4f84043177bbffad6350eddc78db7dac0963b75fb' \
        >> /lock/libraries.txt; \
    printf '%s\n' \
        'numpy==2.4.6 --hash=sha256:83ecb1d57ed9e02a689b6815854ae5397559f514b22c93d030755f6a729ce440' \
        'pip==26.3 --hash=sha256:b089ce017851837db31af32a9845094733c4dcdb4a5ae53e0697bcd206d240dc' \
        'torch==2.14.1 --hash=sha256:c4a15f29c31dcc9eb949cb6647e8d7be3a26da664fbddf7b517f15f8f410c2c1' \
        'torchvision==0.29.1 --hash=sha256:bd7e6197fb7e016ff07c60c5b8d409d44c0764df7a5101e8279e2e033d16531c' \
        'triton==3.8.0 --hash=sha256:171439cfb6c12a49818701f962063ba7a57b6a08cf5b388b80e3a35e87c633eb' \
        >> /lock/torch.txt; \
    printf '%s\n' \
        cuda-bindings==13.0.3 \
        nvidia-cublas==13.1.1.3 \
        nvidia-cudnn-cu13==9.20.0.48 \
        nvidia-nccl-cu13==2.29.7 \
        torch==2.14.1 \
        torchvision==0.29.1 \
        triton==3.8.0 \
        >> /lock/constraints.txt; \
    printf '%s\n' \
        'jupyterlab==4.6.6 --hash=sha256:b5539ad458f2d2c2fa05dc6e139ee093638d97d157a85501e76769d2848662fb' \
        >> /lock/jupyter.txt; \
    printf '%s\n' \
        'einops==0.8.2 --hash=sha256:cd4f878d421acd2d0577e8e1c4c81cb68c98bc05f9fcbf9032629576f34c1031' \
        >> /lock/packages.txt; \
    touch -d @0 /lock/toolkit.txt /lock/libraries.txt /lock/torch.txt /lock/constraints.txt /lock/jupyter.txt /lock/packages.txt

FROM system
ENV PATH="/opt/venv/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}" \
    VIRTUAL_ENV=/opt/venv

COPY --from=lock /lock/toolkit.txt /opt/gpuenv/toolkit.txt
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'the CUDA toolkit'"'"'s libraries, the only copy'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv venv --quiet --no-config --python /usr/bin/python3.11 /opt/venv; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --require-hashes \
        --requirements /opt/gpuenv/toolkit.txt

COPY --from=lock /lock/libraries.txt /opt/gpuenv/libraries.txt
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'cuDNN, NCCL and what else is released apart from the toolkit'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --require-hashes \
        --requirements /opt/gpuenv/libraries.txt

COPY --from=lock /lock/torch.txt /lock/constraints.txt /opt/gpuenv/
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'PyTorch, and what its first import compiles'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    printf '[global]\nconstraint = /opt/gpuenv/constraints.txt\n' > /opt/venv/pip.conf; \
    mkdir -p /etc/uv; \
    { printf 'constraint-dependencies = [\n'; sed 's/.*/    "&",/' /opt/gpuenv/constraints.txt; \
        printf ']\n'; } > /etc/uv/uv.toml; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --require-hashes \
        --requirements /opt/gpuenv/torch.txt; \
    find /opt/venv/lib -path '*/triton/*' -name '*.a' -delete; \
    export TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor; \
    /opt/venv/bin/python -c 'import torch, torch._inductor.compile_fx, torchvision'; \
    rm -rf /tmp/torchinductor

COPY --from=lock /lock/jupyter.txt /opt/gpuenv/jupyter.txt
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : JupyterLab; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --require-hashes \
        --compile-bytecode --requirements /opt/gpuenv/jupyter.txt

RUN --mount=type=cache,id=gpuenv-apt-a4670961ed02,target=/run/gpuenv/apt,sharing=locked \
    : 'an SSH server; its host key comes with each environment'; \
    set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    mkdir -p /run/gpuenv/apt/archives/partial /run/gpuenv/apt/lists/partial; \
    apt_get() { \
        apt-get --yes --quiet \
            -o Dir::Cache::Archives=/run/gpuenv/apt/archives \
            -o Dir::State::Lists=/run/gpuenv/apt/lists \
            -o DPkg::Options::=--force-unsafe-io \
            "$@"; \
    }; \
    apt_get update; \
    apt_get install --no-install-recommends \
        openssh-server \
        rsync \
        screen \
        tmux \
        wget \
        xauth; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache; \
    mkdir -p /run/sshd; \
    if /usr/sbin/sshd -t -o PerSourcePenalties=no 2>/dev/null; then \
        echo 'PerSourcePenalties no' >/etc/ssh/gpuenv.conf; \
    fi; \
    rm -f /etc/ssh/ssh_host_*

RUN --mount=type=cache,id=gpuenv-apt-a4670961ed02,target=/run/gpuenv/apt,sharing=locked \
    : 'the packages asked for'; \
    set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    mkdir -p /run/gpuenv/apt/archives/partial /run/gpuenv/apt/lists/partial; \
    apt_get() { \
        apt-get --yes --quiet \
            -o Dir::Cache::Archives=/run/gpuenv/apt/archives \
            -o Dir::State::Lists=/run/gpuenv/apt/lists \
            -o DPkg::Options::=--force-unsafe-io \
            "$@"; \
    }; \
    apt_get update; \
    apt_get install --no-install-recommends \
        git; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache
COPY --from=lock /lock/packages.txt /opt/gpuenv/packages.txt
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'the packages asked for'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --require-hashes \
        --compile-bytecode --requirements /opt/gpuenv/packages.txt

RUN : 'the working directory'; \
    set -eu; \
    printf 'PATH=%s\n' "/opt/venv/bin:\$PATH" > /etc/profile.d/gpuenv.sh; \
    install -d -o dev -g 0 -m 0775 /workspace; \
    rm -rf /run/gpuenv
WORKDIR "/workspace"
USER 1000
ENV CUDA_CACHE_PATH="/home/dev/.cache/nv" \
    HOME="/home/dev" \
    LOGNAME="dev" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0" \
    NVIDIA_VISIBLE_DEVICES="all" \
    PIP_CONSTRAINT="/opt/gpuenv/constraints.txt" \
    PIP_ROOT_USER_ACTION="ignore" \
    TORCHINDUCTOR_CACHE_DIR="/home/dev/.cache/torchinductor" \
    TRITON_CACHE_DIR="/home/dev/.cache/triton" \
    USER="dev" \
    UV_CONSTRAINT="/opt/gpuenv/constraints.txt"
CMD ["bash"]
LABEL org.gpuenv.features="jupyter,ssh" \
      org.gpuenv.lock="sha256:c7f3b95227a0dc15e63192cbbc8dee07bea54839b6948565558ab4a59da99c38" \
      org.gpuenv.python="3.11" \
      org.gpuenv.spec="{\"environment\":{\"arch\":\"x86_64\",\"arch_list\":[\"sm_75\",\"sm_80\",\"sm_86\",\"sm_90\",\"sm_100\",\"sm_120\"],\"base_image\":\"debian:bookworm-slim@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\",\"confidence\":\"verified\",\"cuda\":\"13.0\",\"cudnn\":\"9.24.0.43\",\"devel_packages\":[],\"flavor\":\"runtime\",\"max_gcc\":\"15\",\"min_driver\":\"580.65.06\",\"nccl\":\"2.30.7\",\"notes\":[],\"overrides\":{},\"python\":\"3.11\",\"python_source\":\"base\",\"source\":\"pypi\",\"toolkit\":\"13.0.3\",\"torch\":\"2.14.1\",\"torch_variant\":\"cu130\",\"torchaudio\":\"2.11.0\",\"torchvision\":\"0.29.1\",\"triton\":\"~=3.8.0\",\"warnings\":[]},\"image\":{\"apt\":[\"git\"],\"base\":null,\"companions\":[\"torchvision\"],\"env\":{},\"features\":[\"jupyter\",\"ssh\"],\"name\":\"team\",\"pip\":[\"einops\"],\"requirements\":[],\"workdir\":\"/workspace\"}}" \
      org.gpuenv.torch="2.14.1" \
      org.gpuenv.torch-variant="cu130" \
      org.gpuenv.version="0.1.0" \
      org.opencontainers.image.base.digest="sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd" \
      org.opencontainers.image.base.name="debian:bookworm-slim" \
      org.opencontainers.image.description="PyTorch 2.14.1 (cu130), Python 3.11, runtime" \
      org.opencontainers.image.title="team"
