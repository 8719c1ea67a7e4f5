# SPDX-License-Identifier: Apache-2.0
#
# What scripts/demo and scripts/test share. Sourced, with `set -euo pipefail` on.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${VITAMIN_JOBS:-$(nproc)}
# Binaries of a build are not looked at by a person; without this ctest and ninja may colour them.
export CLICOLOR=0 CTEST_PROGRESS_OUTPUT=0

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi

step() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
note() { printf '    %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The last line of a log, over and over: in place on a terminal, else now and then.
follow() {
  local log=$1 seconds=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    if [[ -t 1 ]]; then
      printf '\r\e[K    %.90s' "$(tail -n 1 "$log")"
    elif ((seconds % 30 == 0)); then
      note "… $(tail -n 1 "$log")"
    fi
  done
}

# quietly LOG COMMAND...: output in a log, its last line shown meanwhile. The command's own status.
quietly() {
  local log=$1 follower status=0
  shift
  mkdir -p "$(dirname "$log")"
  : >"$log"
  follow "$log" &
  follower=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$follower" 2>/dev/null || true
  wait "$follower" 2>/dev/null || true
  [[ ! -t 1 ]] || printf '\r\e[K'
  return "$status"
}

# logged LOG COMMAND...: as quietly; shows the end of the log when it fails.
logged() {
  local log=$1 started=$SECONDS
  shift
  if quietly "$log" "$@"; then
    note "done in $((SECONDS - started)) s"
  else
    tail -n 60 "$log" >&2
    printf '%s: this failed: %s\nThe whole output is in %s\n' "$(basename "$0")" "$*" "$log" >&2
    return 1
  fi
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "packages are missing, and this is neither root nor is there sudo. As root:
apt-get install$missing"
  fi
}

# install_packages NAME...: those that are missing, with apt-get.
install_packages() {
  local package
  missing=''
  command -v dpkg-query >/dev/null || fail "this is not a Debian system: install the packages of \
scripts/packages.txt by hand and set VITAMIN_SKIP_PACKAGES=1."
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=" $package"
  done
  [[ -n $missing ]] || return 0
  note "installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  # An image's package list may be empty or old.
  as_root apt-get -qq update || note "apt-get update failed; trying with the list that is there"
  # shellcheck disable=SC2086
  as_root apt-get -qq install -y --no-install-recommends $missing >/dev/null ||
    fail "apt-get could not install:$missing. Is there a network?"
}

set_up_packages() {
  [[ -z ${VITAMIN_SKIP_PACKAGES:-} ]] || return 0
  step "system packages"
  local packages
  mapfile -t packages < <(grep -v '^#' "$root/scripts/packages.txt")
  install_packages "${packages[@]}"
  note "all there"
}

# Is there a CUDA toolkit? Deliberately does not ask CMake: it checks what CMake decided.
has_toolkit() {
  local folder
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-[0-9]*; do
    [[ -n $folder && -e $folder/include/cuda.h ]] && return 0
  done
  command -v nvcc >/dev/null
}

# The driver's headers, fetched where no toolkit is installed: Debian has none.
cuda_header_packages=('nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-profiler-api==13.0.*')
cuda_headers=$root/build/cuda-headers/include

fetch_cuda_headers() {
  local folder=$root/build/cuda-headers
  if [[ ! -e $folder/complete ]]; then
    note "no CUDA toolkit here: fetching its headers from PyPI (${cuda_header_packages[*]})"
    if ! python3 -m pip --version >/dev/null 2>&1; then
      [[ -n ${VITAMIN_SKIP_PACKAGES:-} ]] || install_packages python3-pip
    fi
    mkdir -p "$folder"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --dest "$folder" "${cuda_header_packages[@]}" </dev/null || return 1
    python3 - "$folder" "$cuda_headers" <<'PY' || return 1
import pathlib, sys, zipfile
source, folder = map(pathlib.Path, sys.argv[1:])
for path in source.glob("*.whl"):
    wheel = zipfile.ZipFile(path)
    for name in wheel.namelist():
        before, mark, inside = name.partition("/include/")
        if mark and before.startswith("nvidia/") and not name.endswith("/"):
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
    path.unlink()
PY
    touch "$folder/complete"
  fi
}

# Sets `cuda` to yes or no and `cuda_options` to what CMake needs for it.
find_cuda() {
  step "CUDA headers (12.4 or newer)"
  cuda=yes cuda_options=(-DVITAMIN_REQUIRE_CUDA=ON)
  if has_toolkit; then
    note "a toolkit is installed: the CUDA parts must build"
  elif fetch_cuda_headers; then
    cuda_options+=("-DVITAMIN_CUDA_INCLUDE_DIR=$cuda_headers")
    note "headers in ${cuda_headers#"$root"/}: the CUDA parts must build (no GPU binaries: no nvcc)"
  else
    cuda=no cuda_options=(-DVITAMIN_REQUIRE_CUDA=OFF)
    note "none, and they could not be fetched: the CUDA backend, the interposer and the software"
    note "driver are NOT built. Install a CUDA toolkit or make PyPI reachable."
  fi
}

# Sets `amd` to yes or no and `amd_options` to what CMake needs for it. scripts/packages.txt holds
# all of it, so it is missing only where packages were not installed.
find_amd() {
  if [[ -n ${VITAMIN_SKIP_PACKAGES:-} ]] && ! command -v hipcc >/dev/null; then
    amd=no amd_options=()
    note "no hipcc: the software AMD GPU and its tests are NOT built."
  else
    amd=yes amd_options=(-DVITAMIN_REQUIRE_AMD=ON)
  fi
}

# configure PRESET
configure() {
  cmake -S "$root" --preset "$1" "${cuda_options[@]}" "${amd_options[@]}"
}
