#!/usr/bin/env bash
# Make the sample traces again: three simulated, one recorded on this machine's CPU. Needs the environment of tour.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
samples=sample_traces

# An 8 B Llama on an H100, 1 prefill and 5 decode steps of 8 requests, with slow eager launches, one item() a step and
# a scheduler that runs between the steps; then the same decode steps as CUDA graphs; then these with a function that
# runs in and between the steps, and with Python stacks: the one that drill_down.ipynb looks for.
simulate() {
    "$python" -m tests.simulator trace --model llama-8b --batch 8 --prompt 64 --prefill-steps 1 --steps 6 \
        --record-shapes "$@"
}
slow=(--syncs-per-step 1 --between-steps-ns 900000)
simulate $samples/h100_decode_eager.json.gz --mode eager --launch-bound-ns 18000 "${slow[@]}"
simulate $samples/h100_decode_graph.json.gz --mode full_graph "${slow[@]}"
simulate $samples/h100_decode_python.json.gz --mode full_graph --with-stack --python-ns 900000
rm $samples/h100_decode_*.truth.json # says what is true of them, for tests of the simulator

recorded=$samples/serve_cpu
raw=$(mktemp -d)
"$python" -m tracekit collect --force --no-shapes -o $recorded.parquet --keep-raw "$raw" -- "$python" $samples/serve.py
# The profiler notes the full path it wrote to, the machine's name and an id of the run: nobody's business.
cat "$raw"/*.json |
    sed -E -e 's|"traceName": ".*/|"traceName": "|' -e 's/^( *"(host_name|trace_id)"): ".*"/\1: ""/' |
    gzip -9n >$recorded.json.gz
rm -r "$raw"
"$python" -m tracekit convert --force $recorded.json.gz -o $recorded.parquet
