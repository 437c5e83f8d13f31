#!/usr/bin/env bash
# Install tracekit into .venv, record the sample serving script, analyse that recording and a GPU sample trace.
# Needs Python 3.10 or later; PYTHON names another than python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

say() { printf '\n$ %s\n' "$*"; }
run() { say "$@"; "$@"; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "tour: $python is older than Python 3.10; set PYTHON to a newer one" >&2
    exit 1
}
[ -x .venv/bin/python ] || run "$python" -m venv .venv
# This torch first: the extra admits any from 2.1 on, and would take the newest, which may be a long download.
run .venv/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
run .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[collect,dev]'

mkdir -p build
run .venv/bin/tracekit collect --force -o build/trace.parquet -- .venv/bin/python sample_traces/serve.py
run .venv/bin/tracekit analyze build/trace.parquet
run .venv/bin/tracekit analyze sample_traces/h100_decode_eager.json.gz
