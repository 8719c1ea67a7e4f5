#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh RUNS SECONDS FOUND CORPUS PROGRAM OPTIONS...
#
# The test of a fuzzer. Short form: the corpus, then new inputs up to RUNS in all, the same at each
# start (VITAMIN_TEST_SEED sets another seed). Long form (VITAMIN_TEST_LONG=1): SECONDS of new
# inputs of a fresh seed, which libFuzzer prints; what is worth keeping stays in FOUND.
set -eu
runs=$1 seconds=$2 found=$3 corpus=$4
shift 4
if [ "${VITAMIN_TEST_LONG:-}" = 1 ]; then
  exec "$@" ${VITAMIN_TEST_SEED:+"-seed=$VITAMIN_TEST_SEED"} "-max_total_time=$seconds" \
    "$found" "$corpus"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$@" "-seed=${VITAMIN_TEST_SEED:-1}" "-runs=$runs" "$scratch" "$corpus"
