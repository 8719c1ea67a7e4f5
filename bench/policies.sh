#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What bench/results/policies holds: bench/policies.sh VITAMIN TRACES OUT
# tpot-first against throughput on three synthetic traces at three loads, with ablations; simulated.
# What is chosen (the margin) is chosen on the first half of one trace; every other figure is of its
# second half and of the other two.
set -eu
paper=throughput:model=algorithm1,relative=paper
half=107.686

margins=
for margin in 55 60 65 70 75 80 90; do
  margins="$margins --policy tpot-first:margin=$margin"
done
"$1" simulate --trace "$2/azure2024_conv_synth.csv" --seconds $half --load 0.7 --json \
  --policy $paper $margins > "$3/tuning.json"
for trace in azure2024_conv_synth longbench_synth_poisson1 burstgpt_conv_synth; do
  from=0
  [ $trace = azure2024_conv_synth ] && from=$half
  for load in 0.5 0.7 0.9; do
    "$1" simulate --trace "$2/$trace.csv" --from $from --load $load --json --policy $paper \
      --policy tpot-first --policy tpot-first:reservation=0 --policy tpot-first:lookahead=0 \
      --policy throughput --policy tpot-first:lend=0 > "$3/$trace-$load.json"
    "$1" simulate --trace "$2/$trace.csv" --from $from --load $load --json --silent \
      --policy $paper --policy tpot-first > "$3/$trace-$load-silent.json"
  done
  "$1" simulate --trace "$2/$trace.csv" --from $from --load 0.5 --json --training qwen3-0.6b \
    --policy $paper --policy tpot-first --policy throughput > "$3/$trace-0.5-training.json"
done
# Eight GPUs of a hundred clients each, ten minutes of requests: how long the simulation takes.
"$1" simulate --trace "$2/azure2023_conv.csv" --gpus 8 --services 50 --load 0.2 --json \
  --policy throughput > "$3/eight-gpus.json"
