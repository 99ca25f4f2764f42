#!/bin/sh
# Runs a command in the Pythons of Debian testing, where this machine lacks them. As root, in a checkout:
#
#     tools/debian_testing.sh FOLDER COMMAND [ARGUMENT...]
#
# debootstrap makes FOLDER once, from the mirror that apt uses here. The command finds the checkout under its own path.
# Nothing stays mounted: the mounts are in a namespace that ends with the command.
set -eu

packages="ca-certificates gcc git libc6-dev openssl python3.14-dev python3.14-venv python3.15-dev python3.15-venv"

if [ "${1-}" = --inside ]; then
  folder=$2
  shift 2
  mount --rbind "$folder" "$folder"
  for path in /proc /sys /dev; do mount --rbind "$path" "$folder$path"; done
  # A machine that trusts a certificate of its own here does so in there.
  mkdir -p "$folder/etc/ssl/certs" "$folder$PWD"
  mount --bind /etc/ssl/certs "$folder/etc/ssl/certs"
  mount --bind "$PWD" "$folder$PWD"
  exec chroot "$folder" sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
fi

folder=$1
shift
inside() { unshare --mount --propagation private "$0" --inside "$folder" "$@"; }

if [ ! -e "$folder/stamp" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
  debootstrap --variant=minbase testing "$folder" "$mirror"
  # shellcheck disable=SC2086 # one word for each package
  DEBIAN_FRONTEND=noninteractive chroot "$folder" apt-get install --yes --no-install-recommends $packages
  touch "$folder/stamp"
fi
inside "$@"
