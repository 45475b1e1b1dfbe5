#!/usr/bin/env bash
# Runs the benchmarks for a GPU, all or those whose names begin with an argument:
#   bash bench/gpu.sh network dense
# LIMIT: the most seconds of each (600). TOY=1 runs them on a CPU at toy size, with the same flags.
# One that fails does not stop the others; those that failed are listed at the end. Rows of a matrix
# that are in the folder of results already are kept, if they are of this machine and setting.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
limit=${LIMIT:-600}
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
  timeout --foreground --kill-after 10 "$limit" "$@" --out "$out/gpu-$name.json" || failed+=("$name")
  echo "== $name took $SECONDS s"
}
if [ "${TOY:-0}" = 1 ]; then
  out=${OUT:-$(mktemp -d)}
  device=cpu models=(da3-tiny) compiled=(da3-tiny) many=(da3-tiny:3) gibs=(1)
  network=(--sizes 2x84x56 --repeats 1) compiling=(--sizes 4x28x28 --repeats 1 --backend eager)
  precisions=(fp32 bf16)
  session=(--device cpu --backend torch --process-res 84 --repeats 1 --image 84x56)
  tables=(da3-tiny) sliding=(--image 84x56 --repeats 1) documents=(--models da3-tiny --image 84x84)
  eager=(--modes balanced --precisions off --compiles off --backends torch)
  slow=(--modes balanced --precisions int8 --compiles on --backends torch)  # a CPU compiles for minutes
  budgets=(--models da3-tiny --gibs 1) windows=(--model da3-tiny --sizes 1 2) images=84x56 rooms=1
  yardsticks=(small) yardstick=(--precision off --process-res 56 --repeats 1 --images 8)
  shares=(--sizes 2x84x56 --precision fp32) attention=(--sizes 2x84x56 --repeats 1)
  pieces=(--sizes 2x84x56 --precision fp32 --repeats 1) loading=(--models da3-tiny)
  overlap=(--model da3-tiny --process-res 84 --window 3 --frames 7) dense=(--quick --size 84x63)
  replays=(da3-tiny) replay=(--size 112x84 --frames 8 --backend torch --repeats 1)
else
  device=cuda models=(da3-small da3-base da3-large da3-giant) compiled=(da3-small da3-base)
  many=(da3-small:300 da3-large:100 da3-giant:100) gibs=(6 12)
  network=(--sizes 8x504x280 1x504x280 32x504x378 --repeats 20)
  compiling=(--sizes 8x504x280 --repeats 20)
  precisions=(fp32 bf16 fp16)
  session=(--device cuda --backend torch --process-res 504 --repeats 30 --image 504x280)
  tables=(da3-small da3-base) sliding=(--image 504x280 --repeats 100) documents=(--repeats 100)
  eager=(--compiles off --precisions off auto bfloat16 float16)
  slow=(--compiles on --precisions off bfloat16 --modes balanced max)
  budgets=(--models da3-small da3-base da3-large --gibs 2 3 4 6 8 12)
  windows=(--model da3-small --sizes 1 2 4 8 16 32 64) images=504x378 rooms=24
  yardsticks=(small base large)
  yardstick=(--precision off bfloat16 --process-res 504 --repeats 30 --images 1000)
  shares=(--sizes 8x504x280 --precision fp32 bf16)
  attention=(--sizes 8x504x280 32x504x378 --repeats 20)
  pieces=(--sizes 16x504x280 --precision bf16 --repeats 20) loading=()
  overlap=(--process-res 504 --frames 60) dense=(--size 504x378)
  replays=(da3-tiny da3-base) replay=(--size 504x378 --frames 60 --backend torch --repeats 3)
fi
mkdir -p "$out"
for model in "${models[@]}"; do
  part "network-$model" python bench/bench_network.py --device "$device" --models "$model" \
    --precision "${precisions[@]}" --interfaces "${network[@]}"
  part "attention-$model" python bench/bench_attention.py --device "$device" --models "$model" \
    --precision "${precisions[@]}" "${attention[@]}"
  part "pieces-$model" python bench/bench_pieces.py --device "$device" --models "$model" "${pieces[@]}"
done
for model in "${compiled[@]}"; do
  part "compiled-$model" python bench/bench_network.py --device "$device" --models "$model" \
    --precision "${precisions[@]}" --compile "${compiling[@]}"
done
# No row begins in the last quarter of the time, and none takes longer than that.
rows=(--device "$device" --timeout $((limit / 4)) --minutes "$(awk "BEGIN { print $limit / 80 }")")
for model in "${tables[@]}"; do
  part "matrix-$model" python bench/matrix.py --models "$model" "${rows[@]}" "${sliding[@]}" "${eager[@]}"
  part "matrix-compiled-$model" python bench/matrix.py --models "$model" "${rows[@]}" "${sliding[@]}" "${slow[@]}"
done
part matrix-documents python bench/matrix.py --documents "${rows[@]}" "${documents[@]}" "${eager[@]}"
part matrix-compiled-documents python bench/matrix.py --documents "${rows[@]}" "${documents[@]}" "${slow[@]}"
part budgets python bench/bench_session.py budgets "${session[@]}" --views 300 "${budgets[@]}"
part windows python bench/bench_session.py windows "${session[@]}" "${windows[@]}"
for one in "${many[@]}"; do # all views new, with depth
  for gib in "${gibs[@]}"; do
    part "many-${one%:*}-$gib" python bench/bench_session.py windows "${session[@]}" --unseen \
      --model "${one%:*}" --sizes "${one#*:}" --gib "$gib" --image "$images" --repeats 3
  done
done
part precision python bench/bench_precision.py --device "$device" --rooms "$rooms"
part shares python bench/bench_shares.py --device "$device" --models "${compiled[@]}" "${shares[@]}"
for size in "${yardsticks[@]}"; do # needs transformers
  part "yardstick-$size" python bench/bench_yardstick.py --device "$device" --sizes "$size" "${yardstick[@]}"
done
part loading python bench/bench_loading.py --device "$device" ${loading[@]+"${loading[@]}"}
# Only the summary is kept: the profiler's trace, for ui.perfetto.dev, takes megabytes.
part overlap python bench/bench_overlap.py --device "$device" "${overlap[@]}" \
  --trace "${TRACE:-$(mktemp -d)/overlap-trace.json}"
part dense python bench/bench_dense.py rectified --device "$device" "${dense[@]}"
for model in "${replays[@]}"; do
  part "replay-$model" python bench/bench_replay.py --device "$device" --model "$model" "${replay[@]}"
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
