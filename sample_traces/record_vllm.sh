#!/usr/bin/env bash
# Record a vLLM server under load: 8 steps pass, 32 are recorded. What README.md shows was made by this.
# usage: MODEL=... record_vllm.sh FILE.parquet VLLM...      VLLM...: the command `vllm`, or what stands for it
set -euo pipefail
file=$1
vllm=("${@:2}")
tracekit=${TRACEKIT:-tracekit}
port=${PORT:-8123}

"$tracekit" collect --force --paused --warmup 8 --steps 32 -o "$file" -- \
    "${vllm[@]}" serve "$MODEL" --load-format dummy --max-model-len 512 --enforce-eager --port "$port" &
capture=$!
trap 'kill -TERM $capture; wait $capture' EXIT
until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 $capture # else it has ended
    sleep 1
done

"$tracekit" collect --control start --session $capture # recording begins when eight steps have run
"${vllm[@]}" bench serve --model "$MODEL" --port "$port" --dataset-name random --random-input-len 64 \
    --random-output-len 32 --num-prompts 24 --max-concurrency 4
"$tracekit" collect --control stop --session $capture
