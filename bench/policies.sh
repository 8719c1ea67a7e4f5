#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What bench/results/policies holds: bench/policies.sh VITAMIN TRACES OUT
# tpot-first against throughput on three synthetic traces at three loads, with ablations; simulated.
set -eu
for trace in azure2024_conv_synth longbench_synth_poisson1 burstgpt_conv_synth; do
  for load in 0.5 0.7 0.9; do
    "$1" simulate --trace "$2/$trace.csv" --load $load --json --policy throughput \
      --policy tpot-first --policy tpot-first:reservation=0 --policy tpot-first:lookahead=0 \
      > "$3/$trace-$load.json"
  done
  "$1" simulate --trace "$2/$trace.csv" --load 0.5 --json --training qwen3-0.6b \
    --policy throughput --policy tpot-first > "$3/$trace-0.5-training.json"
done
