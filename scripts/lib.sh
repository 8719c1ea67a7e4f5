# SPDX-License-Identifier: Apache-2.0
#
# What the scripts of this directory share. Sourced, with `set -euo pipefail` on.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${VITAMIN_JOBS:-$(nproc)}
# The logs of a build are files: ctest and ninja must not colour them.
export CLICOLOR=0 CTEST_PROGRESS_OUTPUT=0

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi

# duration SECONDS: "75 s" or "3 min 05 s".
duration() {
  if (($1 < 100)); then
    printf '%d s' "$1"
  else
    printf '%d min %02d s' $(($1 / 60)) $(($1 % 60))
  fi
}
step() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
note() { printf '    %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The command that runs now, the leader of a process group, and what shows its last line.
running='' follower='' starting=''

# On a signal: ends the running command with all of its children. Nothing needs to be removed: a
# configuration that was interrupted is made again (configure), an installation is completed
# (install_packages).
interrupted() {
  trap '' INT TERM HUP
  # Between the start of a command and the next line.
  if [[ -n $starting && ${!:-} != "$follower" ]]; then running=$!; fi
  if [[ -n $follower ]]; then kill "$follower" 2>/dev/null || true; fi
  if [[ -n $running ]]; then
    kill -TERM -- "-$running" 2>/dev/null || true
    local waited
    for ((waited = 0; waited < 50; waited++)); do
      kill -0 -- "-$running" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$running" 2>/dev/null || true
  fi
  [[ ! -t 1 ]] || printf '\r\e[K'
  printf '%s: interrupted. Start it again: what was built is kept.\n' "$(basename "$0")" >&2
  exit $((128 + $1))
}
trap 'interrupted 2' INT
trap 'interrupted 15' TERM
trap 'interrupted 1' HUP

# The last line of a log, over and over: in place on a terminal, else every half minute.
follow() {
  local log=$1 started=$SECONDS seconds=0
  trap - INT TERM HUP EXIT
  while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    if [[ -t 1 ]]; then
      printf '\r\e[K    %s  %.80s' "$(duration $((SECONDS - started)))" "$(tail -n 1 "$log")"
    elif ((seconds % 30 == 0)); then
      note "… $(duration $((SECONDS - started)))  $(tail -n 1 "$log")"
    fi
  done
}

# quietly LOG COMMAND...: output in a log, its last line shown meanwhile. The command's own status.
# The command is a process group of its own, so that a signal reaches all of it at once.
quietly() {
  local log=$1 status=0
  shift
  mkdir -p "$(dirname "$log")"
  : >"$log"
  follow "$log" 9>&- &
  follower=$!
  set -m
  starting=yes
  # A build that outlives this script (it was killed) keeps the lock; daemons of tests must not.
  if [[ $1 == ctest ]]; then
    "$@" >"$log" 2>&1 </dev/null 9>&- &
  else
    "$@" >"$log" 2>&1 </dev/null &
  fi
  running=$!
  starting=''
  set +m
  wait "$running" || status=$?
  running=''
  kill "$follower" 2>/dev/null || true
  wait "$follower" 2>/dev/null || true
  follower=''
  [[ ! -t 1 ]] || printf '\r\e[K'
  return "$status"
}

# logged LOG COMMAND...: as quietly; shows the end of the log when it fails.
logged() {
  local log=$1 started=$SECONDS
  shift
  if quietly "$log" "$@"; then
    note "done in $(duration $((SECONDS - started)))"
  else
    tail -n 60 "$log" >&2
    printf '%s: this failed: %s\nThe whole output is in %s\n' "$(basename "$0")" "$*" "$log" >&2
    return 1
  fi
}

# only_one_at_a_time: fails when another script uses this build directory, whose files both would
# write.
only_one_at_a_time() {
  { mkdir -p "$root/build" && : >>"$root/build/lock"; } 2>/dev/null ||
    fail "$root/build cannot be written: clone to a place of your own."
  exec 9>>"$root/build/lock"
  flock -n 9 ||
    fail "another of these scripts, or a build that one began, runs in $root; wait for its end."
}

# need_room DISK_MIB MEMORY_MIB: fails before a build that would run out of disk. MEMORY_MIB is for
# each compiler: with less memory fewer of them run at a time.
need_room() {
  local disk=$1 memory=$2 directory=$root/build free built
  [[ $jobs =~ ^[1-9][0-9]{0,2}$ ]] ||
    fail "VITAMIN_JOBS is '$jobs', not a number of compilers from 1 to 999."
  mkdir -p "$directory"
  free=$(df --output=avail -B1M "$directory" | tail -n 1)
  built=$(du -sm "$directory" | awk '{ print $1 }')
  disk=$((built < disk ? disk - built : 0))
  ((free >= disk)) ||
    fail "$directory has $((free)) MiB free, $disk MiB more are needed. Free some, or clone \
elsewhere."
  free=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' "${VITAMIN_MEMINFO:-/proc/meminfo}")
  ((free >= memory)) ||
    fail "$free MiB of memory are available, $memory MiB are needed. End other programs."
  if ((free / memory < jobs)); then
    jobs=$((free / memory))
    note "$free MiB of memory are available: $jobs compiler(s) at a time"
  fi
}

# as_root LOG COMMAND...
as_root() {
  local log=$1 prefix=()
  shift
  [[ $(id -u) == 0 ]] || prefix=(sudo -n)
  quietly "$log" "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive "$@"
}

# install_packages NAME...: installs those that are missing, with apt-get.
install_packages() {
  local package log=$root/build/packages.log
  local patient=(-o Acquire::Retries=2 -o Acquire::http::Timeout=30
    -o DPkg::Lock::Timeout=600)
  missing=''
  command -v dpkg-query >/dev/null || fail "this is not a Debian system: install the packages of \
scripts/packages.txt by hand and set VITAMIN_SKIP_PACKAGES=1."
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=" $package"
  done
  [[ -n $missing ]] || return 0
  note "installing:$missing"
  # Asks for the password, if any, here: later there is no terminal.
  if [[ $(id -u) != 0 ]] && ! { command -v sudo >/dev/null && sudo -v; }; then
    fail "packages are missing, and this is neither root nor may it use sudo. As root:
apt-get install$missing"
  fi
  # Completes an installation that was interrupted.
  as_root "$log" dpkg --configure -a || {
    tail -n 5 "$log" >&2
    fail "dpkg --configure -a failed."
  }
  # An image's package list may be empty or old.
  as_root "$log" apt-get -q "${patient[@]}" update ||
    note "apt-get update failed; trying with the list that is there"
  # shellcheck disable=SC2086
  as_root "$log" apt-get -q "${patient[@]}" install -y --no-install-recommends $missing || {
    tail -n 5 "$log" >&2
    fail "apt-get could not install:$missing. Is there a network?"
  }
}

# set_up_packages [BUT]: those of packages.txt whose names do not match BUT.
set_up_packages() {
  [[ -z ${VITAMIN_SKIP_PACKAGES:-} ]] || return 0
  local packages started=$SECONDS
  step "system packages"
  mapfile -t packages < <(grep -Ev "^#${1:+|$1}" "$root/scripts/packages.txt")
  install_packages "${packages[@]}"
  note "all there, after $(duration $((SECONDS - started)))"
}

# Whether a CUDA toolkit is installed. Does not ask CMake, because it checks CMake's result.
# VITAMIN_TOOLKITS: the directory in which toolkits are installed (tests set it).
has_toolkit() {
  local directory installed=${VITAMIN_TOOLKITS:-/usr/local}
  for directory in "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$installed"/cuda "$installed"/cuda-[0-9]*; do
    [[ -n $directory && -e $directory/include/cuda.h ]] && return 0
  done
  command -v nvcc >/dev/null
}

# The driver's headers, fetched where no toolkit is installed: Debian has none.
cuda_header_packages=('nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-profiler-api==13.0.*')
cuda_headers=$root/build/cuda-headers/include

fetch_cuda_headers() {
  local directory=$root/build/cuda-headers log=$root/build/cuda-headers.log
  [[ ! -e $directory/complete ]] || return 0
  note "no CUDA toolkit here: fetching its headers from PyPI (${cuda_header_packages[*]})"
  if ! python3 -m pip --version >/dev/null 2>&1; then
    [[ -n ${VITAMIN_SKIP_PACKAGES:-} ]] || install_packages python3-pip
  fi
  rm -rf "$directory"  # an interrupted download
  mkdir -p "$directory"
  quietly "$log" python3 -m pip download --disable-pip-version-check --no-deps --retries 2 \
    --only-binary=:all: --dest "$directory" "${cuda_header_packages[@]}" || return 1
  python3 - "$directory" "$cuda_headers" <<'PY' || return 1
import pathlib, sys, zipfile
source, destination = map(pathlib.Path, sys.argv[1:])
for path in source.glob("*.whl"):
    wheel = zipfile.ZipFile(path)
    for name in wheel.namelist():
        before, mark, inside = name.partition("/include/")
        if mark and before.startswith("nvidia/") and not name.endswith("/"):
            target = destination / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wheel.read(name))
    path.unlink()
PY
  touch "$directory/complete"
}

# find_cuda [required]: sets `cuda` to yes or no and `cuda_options` to what CMake needs for it.
find_cuda() {
  step "CUDA headers (12.4 or newer)"
  cuda=yes cuda_options=(-DVITAMIN_REQUIRE_CUDA=ON)
  if has_toolkit; then
    note "a toolkit is installed: the CUDA parts must build"
  elif fetch_cuda_headers; then
    cuda_options+=("-DVITAMIN_CUDA_INCLUDE_DIR=$cuda_headers")
    note "headers in ${cuda_headers#"$root"/}: the CUDA parts must build (no GPU binaries: no nvcc)"
  elif [[ ${1:-} == required ]]; then
    fail "no CUDA toolkit is installed, and its headers could not be fetched from PyPI \
(build/cuda-headers.log). Is there a network?"
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

# configure PRESET: starts afresh after an interrupted configuration. CMake caches its checks, and a
# check whose compiler was killed is cached as failed.
configure() {
  local directory=$root/build/$1
  if [[ -e $directory/unfinished || ! -e $directory/build.ninja ]]; then
    rm -rf "$directory/CMakeCache.txt" "$directory/CMakeFiles"
  fi
  mkdir -p "$directory"
  touch "$directory/unfinished"
  cmake -S "$root" --preset "$1" "${cuda_options[@]}" "${amd_options[@]}" || return 1
  rm -f "$directory/unfinished"
}
