FROM debian:bookworm-slim AS system
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-12f2bc40491f,target=/run/gpuenv/apt,sharing=locked \
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
FROM debian:bookworm-slim AS uv
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-12f2bc40491f-uv,target=/run/gpuenv/apt,sharing=locked \
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
    python3.11 "$wheel/pip" install --quiet --no-cache-dir --no-compile \
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
        torch==2.13.0+cpu \
        torchvision==0.28.0+cpu \
        numpy \
        pip \
        > /lock/torch.in; \
    /opt/uv/uv pip compile --quiet --no-header --no-annotate \
        --python /usr/bin/python3.11 --extra-index-url https://download.pytorch.org/whl/cpu \
        --output-file /lock/all.txt /lock/torch.in; \
    grep -E '^(nvidia|cuda)-' /lock/all.txt > /lock/cuda.txt || true; \
    grep -E '^nvidia-(cudnn|cusparselt|nccl|nvshmem)-' /lock/cuda.txt > /lock/libraries.txt || true; \
    grep -v -x -F -f /lock/libraries.txt /lock/cuda.txt > /lock/toolkit.txt || true; \
    grep -E -v '^(nvidia|cuda)-' /lock/all.txt > /lock/torch.txt; \
    grep -E '^(torch|torchvision|torchaudio|triton|pytorch-triton|(nvidia|cuda)-[a-z0-9-]+)==' /lock/all.txt > /lock/constraints.txt

FROM system
ENV PATH="/opt/venv/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}" \
    VIRTUAL_ENV=/opt/venv

COPY --from=lock /lock/torch.txt /lock/constraints.txt /opt/gpuenv/
RUN --mount=type=cache,id=gpuenv-uv,target=/run/gpuenv/cache \
    --mount=type=bind,from=uv,source=/opt/uv,target=/run/gpuenv/uv \
    : 'PyTorch, and what its first import compiles'; \
    set -eu; \
    umask 002; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_LINK_MODE=copy UV_INDEX_STRATEGY=unsafe-best-match; \
    /run/gpuenv/uv/uv venv --quiet --no-config --python /usr/bin/python3.11 /opt/venv; \
    printf '[global]\nconstraint = /opt/gpuenv/constraints.txt\n' > /opt/venv/pip.conf; \
    mkdir -p /etc/uv; \
    { printf 'constraint-dependencies = [\n'; sed 's/.*/    "&",/' /opt/gpuenv/constraints.txt; \
        printf ']\n'; } > /etc/uv/uv.toml; \
    /run/gpuenv/uv/uv pip install --python /opt/venv --no-deps --extra-index-url https://download.pytorch.org/whl/cpu \
        --requirements /opt/gpuenv/torch.txt; \
    export TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor; \
    /opt/venv/bin/python -c 'import torch, torch._inductor.compile_fx, torchvision'; \
    rm -rf /tmp/torchinductor

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
    PIP_CONSTRAINT="/opt/gpuenv/constraints.txt" \
    PIP_ROOT_USER_ACTION="ignore" \
    TORCHINDUCTOR_CACHE_DIR="/home/dev/.cache/torchinductor" \
    TRITON_CACHE_DIR="/home/dev/.cache/triton" \
    USER="dev" \
    UV_CONSTRAINT="/opt/gpuenv/constraints.txt"
CMD ["bash"]
LABEL org.gpuenv.features="" \
      org.gpuenv.python="3.11" \
      org.gpuenv.spec="{\"environment\":{\"arch\":\"x86_64\",\"arch_list\":[],\"base_image\":\"debian:bookworm-slim\",\"confidence\":\"derived\",\"cuda\":null,\"cudnn\":null,\"devel_packages\":[],\"flavor\":\"runtime\",\"max_gcc\":null,\"min_driver\":null,\"nccl\":null,\"notes\":[],\"overrides\":{},\"python\":\"3.11\",\"python_source\":\"base\",\"source\":\"pytorch\",\"toolkit\":null,\"torch\":\"2.13.0\",\"torch_variant\":\"cpu\",\"torchaudio\":\"2.11.0\",\"torchvision\":\"0.28.0\",\"triton\":null,\"warnings\":[]},\"image\":{\"apt\":[],\"base\":null,\"companions\":[\"torchvision\"],\"env\":{},\"features\":[],\"name\":\"torch\",\"pip\":[],\"requirements\":[],\"workdir\":\"/workspace\"}}" \
      org.gpuenv.torch="2.13.0" \
      org.gpuenv.torch-variant="cpu" \
      org.gpuenv.version="0.1.0" \
      org.opencontainers.image.base.name="debian:bookworm-slim" \
      org.opencontainers.image.description="PyTorch 2.13.0 (cpu), Python 3.11, runtime" \
      org.opencontainers.image.title="torch"
