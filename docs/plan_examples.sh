#!/bin/bash
# Makes docs/plan.md's outputs and pictures again: docs/plan_examples.sh PATH/TO/fsdpctl
# Pictures go to docs/img; the outputs are printed. Needs neither a coordinator nor a GPU.
set -euo pipefail
fsdpctl=$(realpath "$1")
cd "$(dirname "$0")"
mkdir -p img

example() {  # example PRESET NODES [FLAG...]
  local arguments=(--offline -f plan.yaml --profile h200 --set "name=$1" --set "model.preset=$1"
    --set "resources.nodes=$2" --picture "img/plan-$1-$(($2 * 8)).svg" "${@:3}")
  echo "\$ fsdpctl plan ${arguments[*]}"
  "$fsdpctl" plan "${arguments[@]}" 2>&1 || true  # One of them is refused, as the page shows.
  echo
}

for nodes in 1 8; do
  example llama3-8b "$nodes"
  example qwen3-8b "$nodes"
done
example llama3-70b 1
example llama3-70b 1 --set precision.moments=bf16
example llama3-70b 8
