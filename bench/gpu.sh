#!/usr/bin/env bash
# Everything that is wanted from a GPU, in parts that each end within ten minutes.
# TOY=1 runs it on a CPU at toy size.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
mkdir -p "$out"
if [ "${TOY:-0}" = 1 ]; then
  out=$(mktemp -d)
  network=(--device cpu --models da3-tiny --sizes 2x84x56 --repeats 1)
  session=(--device cpu --model da3-tiny --process-res 84 --repeats 1 --image 84x56)
  matrix=(--modes balanced --precisions off bfloat16 --compiles off)  # a CPU compiles for minutes
  budgets=(--models da3-tiny --gibs 1) windows=(--sizes 1 2) many=(--sizes 3) precision=(--device cpu --rooms 1)
  yardstick=(--device cpu --process-res 56 --repeats 1)
  shares=(--device cpu --models da3-tiny --sizes 2x84x56)
  overlap=(--device cpu --model da3-tiny --process-res 84 --window 3 --frames 7) big=(da3-tiny)
else
  network=(--device cuda --models da3-small da3-base da3-large --precision fp32 bf16 fp16 --compile
           --sizes 8x504x280 1x504x280 32x504x378 --repeats 20)
  session=(--device cuda --repeats 30)
  matrix=(--precisions off bfloat16 float16)
  budgets=(--models da3-small da3-base da3-large --gibs 2 3 4 6 8 12) windows=()
  many=(--sizes 100 300 --image 504x378) precision=(--device cuda --rooms 24)
  yardstick=(--device cuda --sizes small base large --precision off bfloat16 --process-res 504 --repeats 30)
  shares=(--device cuda --models da3-small da3-base da3-large --sizes 8x504x280 --precision fp32 bf16)
  overlap=(--device cuda --process-res 504 --frames 60) big=(da3-small da3-large da3-giant)
fi
python bench/bench_network.py "${network[@]}" --out "$out/gpu-network.json"
python bench/bench_session.py matrix "${session[@]}" "${matrix[@]}" --out "$out/gpu-matrix.json"
python bench/bench_session.py budgets "${session[@]}" --views 300 "${budgets[@]}" --out "$out/gpu-budgets.json"
python bench/bench_session.py windows "${session[@]}" ${windows[@]+"${windows[@]}"} --out "$out/gpu-windows.json"
python bench/bench_precision.py "${precision[@]}" --out "$out/gpu-precision.json"
python bench/bench_shares.py "${shares[@]}" --out "$out/gpu-shares.json"
python bench/bench_yardstick.py "${yardstick[@]}" --out "$out/gpu-yardstick.json"  # with transformers
# The summary is kept; the profiler's whole trace, for ui.perfetto.dev, is megabytes.
python bench/bench_overlap.py "${overlap[@]}" --out "$out/gpu-overlap.json" \
  --trace "${TRACE:-$(mktemp -d)/overlap-trace.json}"
for model in "${big[@]}"; do
  python bench/bench_session.py windows "${session[@]}" --model "$model" "${many[@]}" --out "$out/gpu-many-$model.json"
done
echo "results are in $out"
