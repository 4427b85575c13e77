FROM ubuntu:24.04 AS system
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-19a0a084b9b9,target=/run/gpuenv/apt,sharing=locked \
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
        python3.12 \
        python3.12-dev; \
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
FROM ubuntu:24.04 AS uv
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-19a0a084b9b9-uv,target=/run/gpuenv/apt,sharing=locked \
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
        python3.12-venv; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache; \
    wheel=$(echo /usr/share/python-wheels/pip-*.whl); \
    python3.12 "$wheel/pip" install --quiet --no-cache-dir --no-compile \
        --target /tmp/uv 'uv>=0.9,<0.14'; \
    install -D /tmp/uv/bin/uv /opt/uv/uv; \
    rm -r /tmp/uv

# What exactly to install. A new torch on the same CUDA writes the same lists of CUDA wheels, so
# their layers stay.
FROM uv AS lock
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    : 'which versions exactly'; \
    set -eu; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_INDEX_STRATEGY=unsafe-best-match; \
    mkdir /lock; \
    printf '%s\n' \
        torch==2.9.1 \
        torchaudio==2.9.1 \
        torchvision==0.24.1 \
        numpy \
        pip \
        > /lock/torch.in; \
    /opt/uv/uv pip compile --quiet --no-header --no-annotate \
        --python /usr/bin/python3.12 \
        --output-file /lock/all.txt /lock/torch.in; \
    grep -E '^(nvidia|cuda)-' /lock/all.txt > /lock/cuda.txt || true; \
    grep -E '^nvidia-(cudnn|cusparselt|nccl|nvshmem)-' /lock/cuda.txt > /lock/libraries.txt || true; \
    grep -v -x -F -f /lock/libraries.txt /lock/cuda.txt > /lock/toolkit.txt || true; \
    grep -E -v '^(nvidia|cuda)-' /lock/all.txt > /lock/torch.txt; \
    grep -E '^(torch|torchvision|torchaudio|triton|pytorch-triton|(nvidia|cuda)-[a-z0-9-]+)==' /lock/all.txt > /lock/constraints.txt

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
    /run/gpuenv/uv/uv venv --quiet --no-config --python /usr/bin/python3.12 /opt/venv; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps \
        --requirements /opt/gpuenv/toolkit.txt

COPY --from=lock /lock/libraries.txt /opt/gpuenv/libraries.txt
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'cuDNN, NCCL and what else is released apart from the toolkit'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps \
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
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps \
        --requirements /opt/gpuenv/torch.txt; \
    find /opt/venv/lib -path '*/triton/*' -name '*.a' -delete; \
    export TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor; \
    /opt/venv/bin/python -c 'import torch, torch._inductor.compile_fx, torchaudio, torchvision'; \
    rm -rf /tmp/torchinductor

RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : JupyterLab; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    printf '%s\n' \
        argon2-cffi \
        ipywidgets \
        jupyter-resource-usage \
        jupyterlab \
        jupyterlab-nvdashboard \
        matplotlib \
        > /tmp/requirements.txt; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --constraints /opt/gpuenv/constraints.txt \
        --compile-bytecode --requirements /tmp/requirements.txt; \
    /run/gpuenv/uv/uv pip freeze --quiet --python /opt/venv > /tmp/installed.txt; \
    swapped=$(grep -v -x -F -f /tmp/installed.txt /opt/gpuenv/constraints.txt || true); \
    rm /tmp/requirements.txt /tmp/installed.txt; \
    if [ -n "$swapped" ]; then \
        printf 'gpuenv: these requirements would replace what the image was resolved for:\n%s\n' \
            "$swapped" >&2; \
        exit 1; \
    fi

RUN --mount=type=cache,id=gpuenv-apt-19a0a084b9b9,target=/run/gpuenv/apt,sharing=locked \
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

RUN --mount=type=cache,id=gpuenv-apt-19a0a084b9b9,target=/run/gpuenv/apt,sharing=locked \
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
        git \
        jq; \
    rm -rf /var/cache/apt/*.bin \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/apt /var/log/*.log \
        /var/cache/ldconfig/aux-cache
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'the packages asked for'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    printf '%s\n' \
        'tomli ; python_version < '"'"'3.11'"'"'' \
        einops \
        'transformers>=5,<6' \
        > /tmp/requirements.txt; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --constraints /opt/gpuenv/constraints.txt \
        --compile-bytecode --requirements /tmp/requirements.txt; \
    /run/gpuenv/uv/uv pip freeze --quiet --python /opt/venv > /tmp/installed.txt; \
    swapped=$(grep -v -x -F -f /tmp/installed.txt /opt/gpuenv/constraints.txt || true); \
    rm /tmp/requirements.txt /tmp/installed.txt; \
    if [ -n "$swapped" ]; then \
        printf 'gpuenv: these requirements would replace what the image was resolved for:\n%s\n' \
            "$swapped" >&2; \
        exit 1; \
    fi

RUN : 'the working directory'; \
    set -eu; \
    printf 'PATH=%s\n' "/opt/venv/bin:\$PATH" > /etc/profile.d/gpuenv.sh; \
    install -d -o dev -g 0 -m 0775 /srv/app; \
    rm -rf /run/gpuenv
WORKDIR "/srv/app"
USER 1000
ENV CUDA_CACHE_PATH="/home/dev/.cache/nv" \
    GREETING="a \"b\" \$c \\d 'e'" \
    HOME="/home/dev" \
    LOGNAME="dev" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    NVIDIA_REQUIRE_CUDA="cuda>=12.0" \
    NVIDIA_VISIBLE_DEVICES="all" \
    OMP_NUM_THREADS="8" \
    PIP_CONSTRAINT="/opt/gpuenv/constraints.txt" \
    PIP_ROOT_USER_ACTION="ignore" \
    TORCHINDUCTOR_CACHE_DIR="/home/dev/.cache/torchinductor" \
    TRITON_CACHE_DIR="/home/dev/.cache/triton" \
    USER="dev" \
    UV_CONSTRAINT="/opt/gpuenv/constraints.txt"
CMD ["bash"]
LABEL org.gpuenv.features="jupyter,ssh" \
      org.gpuenv.python="3.12" \
      org.gpuenv.spec="{\"environment\":{\"arch\":\"x86_64\",\"arch_list\":[\"sm_70\",\"sm_75\",\"sm_80\",\"sm_86\",\"sm_90\",\"sm_100\",\"sm_120\"],\"base_image\":\"ubuntu:24.04\",\"confidence\":\"verified\",\"cuda\":\"12.8\",\"cudnn\":\"9.10.2.21\",\"devel_packages\":[],\"flavor\":\"runtime\",\"max_gcc\":\"14\",\"min_driver\":\"525.60.13\",\"nccl\":\"2.27.5\",\"notes\":[],\"overrides\":{},\"python\":\"3.12\",\"python_source\":\"base\",\"source\":\"pypi\",\"toolkit\":\"12.8.1\",\"torch\":\"2.9.1\",\"torch_variant\":\"cu128\",\"torchaudio\":\"2.9.1\",\"torchvision\":\"0.24.1\",\"triton\":\"3.5.1\",\"warnings\":[]},\"image\":{\"apt\":[\"git\",\"jq\"],\"base\":null,\"companions\":[\"torchaudio\",\"torchvision\"],\"env\":{\"GREETING\":\"a \\u0022b\\u0022 \\u0024c \\u005cd 'e'\",\"OMP_NUM_THREADS\":\"8\"},\"features\":[\"jupyter\",\"ssh\"],\"name\":\"team\",\"pip\":[\"einops\",\"transformers>=5,<6\"],\"requirements\":[\"tomli ; python_version < '3.11'\"],\"workdir\":\"/srv/app\"}}" \
      org.gpuenv.torch="2.9.1" \
      org.gpuenv.torch-variant="cu128" \
      org.gpuenv.version="0.1.0" \
      org.opencontainers.image.base.name="ubuntu:24.04" \
      org.opencontainers.image.description="PyTorch 2.9.1 (cu128), Python 3.12, runtime" \
      org.opencontainers.image.title="team"
