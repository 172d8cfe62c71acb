#!/bin/sh
# The Debian and Ubuntu packages that glmspark needs beside Python packages.
#
#   tools/debian-packages.sh [lab] [bench]             name those that are missing here; exit status 1 if there
#                                                      are any
#   tools/debian-packages.sh [lab] [bench] --install   install them (needs root; asks sudo when there is one)
#   tools/debian-packages.sh [lab] [bench] --list      name all of them, one a line
#
# With `bench`: those of the scripts in bench/. With `lab`: those of `glmspark lab` and its tests, too. Installing them starts an sshd and a Docker Engine on
# this machine, which the lab does not need: `systemctl disable --now ssh docker.socket docker` stops them.
set -eu

# make: the two commands. python3, python3-venv: the environment (Debian ships Python without `ensurepip`).
# libnuma1: the CPU engine's compiled core loads it. ca-certificates: pip over https.
packages="make python3 python3-venv libnuma1 ca-certificates"

# package:program, since the program may have come another way (Docker's own packages, for instance).
# iproute2: interfaces, routes, link rates. tini: process 1 of a node. debootstrap: the containers' base image.
# iputils-ping, iperf3: the tests look at paths and rates.
lab_packages="iproute2:tc openssh-server:sshd openssh-client:ssh-keygen docker.io:dockerd sudo:sudo tini:tini
  debootstrap:debootstrap procps:sysctl iputils-ping:ping iperf3:iperf3"

# fio: what a disk gives, to compare the loader with. rsync: how people copy weights, to compare `fetch` with.
bench_packages="fio:fio rsync:rsync"

usage() {
  echo "usage: tools/debian-packages.sh [lab] [bench] [--install | --list]" >&2
  exit 2
}

PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
with_lab=""
more_packages=""
words=""
while [ "${1:-}" = lab ] || [ "${1:-}" = bench ]; do
  if [ "$1" = lab ]; then
    with_lab=1
    more_packages="$more_packages $lab_packages"
  else
    more_packages="$more_packages $bench_packages"
  fi
  words="$words$1 "
  shift
done
[ $# -le 1 ] || usage

missing=""
for package in $packages; do
  # The Python at hand may be a newer one from elsewhere; then its own venv package is what counts, and the
  # set-up names it.
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing="$missing $package"
done
# From Debian 13 on, the client is a package of its own.
if [ -n "$with_lab" ] && apt-cache show docker-cli >/dev/null 2>&1; then
  more_packages="$more_packages docker-cli:docker"
fi
for entry in $more_packages; do
  packages="$packages ${entry%%:*}"
  command -v "${entry##*:}" >/dev/null || missing="$missing ${entry%%:*}"
done
missing=${missing# }

case "${1:-}" in
  --list)
    printf '%s\n' $packages
    ;;
  --install)
    if [ -z "$missing" ]; then
      echo "nothing is missing"
      exit 0
    fi
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
      command -v sudo >/dev/null || {
        echo "error: only root may install packages, and there is no sudo here." >&2
        echo "  next: as root: apt-get update && apt-get install $missing" >&2
        exit 1
      }
      as_root=sudo
    fi
    echo "installing: $missing"
    $as_root apt-get update -q
    # shellcheck disable=SC2086 # a list of names
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
    ;;
  "")
    if [ -z "$missing" ]; then
      echo "nothing is missing"
    else
      echo "missing: $missing"
      echo "next: tools/debian-packages.sh $words--install"
      exit 1
    fi
    ;;
  *)
    usage
    ;;
esac
