#!/bin/sh
# The Debian and Ubuntu packages that glmspark needs beside Python packages.
#
#   tools/debian-packages.sh             name those that are missing here; exit status 1 if there are any
#   tools/debian-packages.sh --install   install them (needs root; asks sudo when there is one)
#   tools/debian-packages.sh --list      name all of them, one a line
set -eu

# make: the two commands. python3, python3-venv: the environment (Debian ships Python without `ensurepip`).
# libnuma1: the CPU engine's compiled core loads it. ca-certificates: pip over https.
packages="make python3 python3-venv libnuma1 ca-certificates"

missing=""
for package in $packages; do
  # The Python at hand may be a newer one from elsewhere; then its own venv package is what counts, and the
  # set-up names it.
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing="$missing $package"
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
    $as_root apt-get install -q -y --no-install-recommends $missing
    ;;
  "")
    if [ -z "$missing" ]; then
      echo "nothing is missing"
    else
      echo "missing: $missing"
      echo "next: tools/debian-packages.sh --install"
      exit 1
    fi
    ;;
  *)
    echo "usage: tools/debian-packages.sh [--install | --list]" >&2
    exit 2
    ;;
esac
