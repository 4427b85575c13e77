#!/usr/bin/env bash
# Install what the tests use and this machine lacks: as root on Debian or Ubuntu; elsewhere say what is
# missing (those tests are skipped, or fail under GPUENV_TEST_STRICT=1).
set -euo pipefail

# program or file -> Debian package
declare -A packages=(
    [debootstrap]=debootstrap [iptables]=iptables [docker-registry]=docker-registry
    [chromium]=chromium [ssh]=openssh-client [sshd]=openssh-server [rsync]=rsync [tmux]=tmux [cc]=gcc
    [ip]=iproute2 [xauth]=xauth
)
missing=()
for program in "${!packages[@]}"; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("${packages[$program]}")
done
# Any engine that answers will do; without one the tests start a private engine with gpuenv itself.
command -v dockerd >/dev/null || [ -S /var/run/docker.sock ] || missing+=(docker.io)
[ ${#missing[@]} = 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing for the tests: ${missing[*]}" >&2
    apt-get update -qq
    # A service must not start by itself here: the tests start what they need.
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d.gpuenv && chmod +x /usr/sbin/policy-rc.d.gpuenv
    had_policy=0
    [ -e /usr/sbin/policy-rc.d ] && had_policy=1 || mv /usr/sbin/policy-rc.d.gpuenv /usr/sbin/policy-rc.d
    trap '[ $had_policy = 1 ] || rm -f /usr/sbin/policy-rc.d; rm -f /usr/sbin/policy-rc.d.gpuenv' EXIT
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
    echo "note: without ${missing[*]} some tests are skipped" >&2
fi
