#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Simulated policies on synthetic traces: bench/policies.sh VITAMIN TRACES OUT
# The paper's two policies, its deadlines token by token, and ours, on three traces at three loads;
# the first half of the Azure trace is left for what is to be chosen.
set -eu
paper=throughput:model=algorithm1,relative=paper
half=107.686

for trace in azure2024_conv_synth longbench_synth_poisson1 burstgpt_conv_synth; do
  from=0
  [ $trace = azure2024_conv_synth ] && from=$half
  for load in 0.5 0.7 0.9; do
    "$1" simulate --trace "$2/$trace.csv" --from $from --load $load --json --policy $paper \
      --policy tpot-first --policy tpot-first:cumulative=no --policy slo --policy throughput \
      --policy fifo > "$3/$trace-$load.json"
    "$1" simulate --trace "$2/$trace.csv" --from $from --load $load --json --silent \
      --policy $paper --policy tpot-first --policy slo > "$3/$trace-$load-silent.json"
  done
  "$1" simulate --trace "$2/$trace.csv" --from $from --load 0.5 --json --training qwen3-0.6b \
    --policy $paper --policy tpot-first --policy slo --policy throughput \
    > "$3/$trace-0.5-training.json"
done
# Eight GPUs of a hundred clients each: how long the simulation takes.
"$1" simulate --trace "$2/azure2024_conv_synth.csv" --gpus 8 --services 50 --load 0.2 --json \
  --policy throughput > "$3/eight-gpus.json"
