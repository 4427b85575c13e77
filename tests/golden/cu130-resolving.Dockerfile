# The installer, which runs beside the image and is not in it.
FROM debian:bookworm-slim@sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd AS uv
ENV LANG=C.UTF-8
RUN --mount=type=cache,id=gpuenv-apt-a4670961ed02-uv,target=/run/gpuenv/apt,sharing=locked \
    --mount=type=bind,source=.gpuenv/host,target=/run/gpuenv/host \
    : 'the installer'; \
    : sha256:285b6374a2ab14b1e443e598d751af7e1f34f273e614e049c1ce9fc108f6d7ef; \
    export \
        CURL_CA_BUNDLE=/run/gpuenv/host/ca.crt \
        PIP_CERT=/run/gpuenv/host/ca.crt \
        PIP_CONFIG_FILE=/run/gpuenv/host/pip.conf \
        REQUESTS_CA_BUNDLE=/run/gpuenv/host/ca.crt \
        SSL_CERT_FILE=/run/gpuenv/host/ca.crt \
        UV_CONFIG_FILE=/run/gpuenv/host/uv.toml; \
    set -eu; \
    export DEBIAN_FRONTEND=noninteractive; \
    mkdir -p /run/gpuenv/apt/archives/partial /run/gpuenv/apt/lists/partial; \
    sources=$(mktemp -d); \
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources; do \
        if [ -f "$file" ]; then \
            sed -E 's#https?://[a-z0-9.-]+/debian-security/?( |$)#https://mirror.example.org/debian-security\1#g;s#https?://[a-z0-9.-]+/(debian|ubuntu|ubuntu-ports)/?( |$)#https://mirror.example.org/debian\2#g' "$file" > "$sources/main-${file##*/}"; \
        fi; \
    done; \
    apt_get() { \
        apt-get --yes --quiet \
            -o Dir::Cache::Archives=/run/gpuenv/apt/archives \
            -o Dir::State::Lists=/run/gpuenv/apt/lists \
            -o DPkg::Options::=--force-unsafe-io \
            -o Acquire::https::CAInfo=/run/gpuenv/ca.crt \
            -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$sources" \
            "$@"; \
    }; \
    apt_get update; \
    apt_get install --no-install-recommends \
        ca-certificates \
        python3.11-venv; \
    rm -rf "$sources" /var/cache/apt/*.bin \
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

# What exactly to install, all in one resolution: for gpuenv.lock. Of the host's own wheels only the
# metadata is here, so what is read of them must not be taken for them by a build.
FROM uv AS lock
RUN --mount=type=cache,id=gpuenv-uv-lock,target=/run/gpuenv/cache \
    --mount=type=bind,source=.gpuenv/host,target=/run/gpuenv/host \
    --mount=type=bind,source=.gpuenv/late,target=/run/gpuenv/late \
    : 'which versions exactly'; \
    : sha256:285b6374a2ab14b1e443e598d751af7e1f34f273e614e049c1ce9fc108f6d7ef; \
    : sha256:bb6b39b149938035afa6a17c26ad20c67e80dc32b77c3f43778b854df48012d7; \
    export \
        CURL_CA_BUNDLE=/run/gpuenv/host/ca.crt \
        PIP_CERT=/run/gpuenv/host/ca.crt \
        PIP_CONFIG_FILE=/run/gpuenv/host/pip.conf \
        REQUESTS_CA_BUNDLE=/run/gpuenv/host/ca.crt \
        SSL_CERT_FILE=/run/gpuenv/host/ca.crt \
        UV_CONFIG_FILE=/run/gpuenv/host/uv.toml; \
    set -eu; \
    : 0123456789abcdef; \
    export UV_CACHE_DIR=/run/gpuenv/cache UV_INDEX_STRATEGY=unsafe-best-match; \
    mkdir /lock; \
    printf '%s\n' \
        einops==0.8.2 \
        > /lock/all.txt; \
    printf '%s\n' \
        torch==2.14.1 \
        torchvision==0.29.1 \
        numpy \
        pip \
        > /lock/torch.in; \
    printf '%s\n' \
        torch==2.14.1 \
        torchvision==0.29.1 \
        numpy \
        pip \
        argon2-cffi \
        ipywidgets \
        jupyter-resource-usage \
        jupyterlab \
        jupyterlab-nvdashboard \
        matplotlib \
        > /lock/jupyter.in; \
    printf '%s\n' \
        torch==2.14.1 \
        torchvision==0.29.1 \
        numpy \
        pip \
        argon2-cffi \
        ipywidgets \
        jupyter-resource-usage \
        jupyterlab \
        jupyterlab-nvdashboard \
        matplotlib \
        einops \
        > /lock/packages.in; \
    compile() { \
        /opt/uv/uv pip compile --quiet --no-header --no-annotate \
            --python /usr/bin/python3.11 --find-links /run/gpuenv/late "$@"; \
    }; \
    compile --output-file /lock/all.txt /lock/packages.in; \
    compile --constraints /lock/all.txt --output-file /lock/torch.txt /lock/torch.in; \
    compile --constraints /lock/all.txt --output-file /lock/jupyter.txt /lock/jupyter.in; \
    version=$(/opt/uv/uv --version); version=${version#uv }; \
    echo "uv==${version%% *}" > /lock/installer.txt; \
    for list in all installer; do \
        compile --no-deps --generate-hashes --format pylock.toml \
            --output-file "/lock/pylock.$list.toml" "/lock/$list.txt"; \
    done

FROM scratch
COPY --from=lock /lock /
