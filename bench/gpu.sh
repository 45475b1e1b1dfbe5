#!/usr/bin/env bash
# Runs the benchmarks for a GPU, all or those whose names begin with an argument:
#   bash bench/gpu.sh network dense
# LIMIT: the most seconds of each (600). TOY=1 runs them on a CPU at toy size. One that fails does
# not stop the others; those that failed are listed at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
mkdir -p "$out"
asked=("$@")
failed=()
ran=0
wanted() { # NAME: whether the part was asked for
  local begin
  [ ${#asked[@]} = 0 ] && return
  for begin in "${asked[@]}"; do
    [[ $1 == "$begin"* ]] && return
  done
  return 1
}
part() { # NAME COMMAND...: runs the command, which writes $out/gpu-NAME.json
  local name=$1
  shift
  wanted "$name" || return 0
  ran=1
  echo "== $name"
  SECONDS=0
  timeout --foreground --kill-after 10 "${LIMIT:-600}" "$@" --out "$out/gpu-$name.json" || failed+=("$name")
  echo "== $name took $SECONDS s"
}
if [ "${TOY:-0}" = 1 ]; then
  out=$(mktemp -d)
  device=cpu models=(da3-tiny) compiled=(da3-tiny) big=(da3-tiny)
  network=(--sizes 2x84x56 --repeats 1) compiling=(--sizes 4x28x28 --repeats 1 --backend eager)
  precisions=(fp32 bf16)
  session=(--device cpu --model da3-tiny --process-res 84 --repeats 1 --image 84x56)
  matrix=(--modes balanced --precisions off bfloat16 --compiles off)  # a CPU compiles for minutes
  budgets=(--models da3-tiny --gibs 1) windows=(--sizes 1 2) many=(--sizes 3) rooms=1
  yardstick=(--process-res 56 --repeats 1) shares=(--sizes 2x84x56)
  overlap=(--model da3-tiny --process-res 84 --window 3 --frames 7) dense=(--quick)
else
  device=cuda models=(da3-small da3-base da3-large da3-giant) compiled=(da3-small da3-base)
  big=(da3-small da3-large da3-giant)
  network=(--sizes 8x504x280 1x504x280 32x504x378 --repeats 20)
  compiling=(--sizes 8x504x280 --repeats 20)
  precisions=(fp32 bf16 fp16)
  session=(--device cuda --repeats 30)
  matrix=(--precisions off bfloat16 float16)
  budgets=(--models da3-small da3-base da3-large --gibs 2 3 4 6 8 12) windows=()
  many=(--sizes 100 300 --image 504x378) rooms=24
  yardstick=(--sizes small base large --precision off bfloat16 --process-res 504 --repeats 30)
  shares=(--sizes 8x504x280 --precision fp32 bf16) overlap=(--process-res 504 --frames 60)
  dense=(--size 504x378)
fi
for model in "${models[@]}"; do
  part "network-$model" python bench/bench_network.py --device "$device" --models "$model" \
    --precision "${precisions[@]}" "${network[@]}"
done
for model in "${compiled[@]}"; do
  part "compiled-$model" python bench/bench_network.py --device "$device" --models "$model" \
    --precision "${precisions[@]}" --compile "${compiling[@]}"
done
part matrix python bench/bench_session.py matrix "${session[@]}" "${matrix[@]}"
part budgets python bench/bench_session.py budgets "${session[@]}" --views 300 "${budgets[@]}"
part windows python bench/bench_session.py windows "${session[@]}" ${windows[@]+"${windows[@]}"}
part precision python bench/bench_precision.py --device "$device" --rooms "$rooms"
part shares python bench/bench_shares.py --device "$device" --models "${compiled[@]}" "${shares[@]}"
part yardstick python bench/bench_yardstick.py --device "$device" "${yardstick[@]}"  # needs transformers
# Only the summary is kept: the profiler's trace, for ui.perfetto.dev, takes megabytes.
part overlap python bench/bench_overlap.py --device "$device" "${overlap[@]}" \
  --trace "${TRACE:-$(mktemp -d)/overlap-trace.json}"
part dense python bench/bench_dense.py rectified --device "$device" "${dense[@]}"
for model in "${big[@]}"; do
  part "many-$model" python bench/bench_session.py windows "${session[@]}" --model "$model" "${many[@]}"
done
if [ $ran = 0 ]; then
  echo "no part begins with ${asked[*]}" >&2
  exit 1
fi
echo "results are in $out"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
