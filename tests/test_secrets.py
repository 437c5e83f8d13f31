"""Credentials are blanked wherever free text is stored; names of kernels and ranges stay as they are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.secrets import redact

KERNEL_NAMES = Path(__file__).resolve().parents[2] / "shared" / "kernel_names.tsv"
TAIL = "Ab3" * 8  # not a credential of anyone; put together here so that scanners of repositories find nothing


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("hf_" + TAIL, "[redacted]"),
        ("load hf_" + TAIL + " done", "load [redacted] done"),
        ("gh" + "p_" + TAIL, "[redacted]"),
        ("github" + "_pat_" + TAIL, "[redacted]"),
        ("glpat" + "-" + TAIL, "[redacted]"),
        ("xox" + "b-" + TAIL, "[redacted]"),
        ("sk" + "-proj-" + TAIL, "[redacted]"),
        ("nvapi" + "-" + TAIL, "[redacted]"),
        ("AKIA" + "A" * 16, "[redacted]"),
        ("AIza" + "Sy" * 17, "[redacted]"),
        ("eyJ" + TAIL + "." + TAIL + "." + TAIL, "[redacted]"),
        ("Authorization: Bearer " + TAIL, "Authorization: [redacted]"),
        ("curl -H 'authorization: basic " + TAIL + "'", "curl -H 'authorization: [redacted]'"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMII...\n", "[redacted]"),
        ("postgres://me:hunter2@host/db", "postgres://[redacted]@host/db"),
        ("--api-key=" + TAIL, "--api-key=[redacted]"),
        ("serve --api-key " + TAIL + " --port 8000", "serve --api-key [redacted] --port 8000"),
        ("serve --max-token 128000 --token-file x", "serve --max-token 128000 --token-file x"),
        ('{"password": "correct horse"}', '{"password": "[redacted]"}'),
        ("{'password': 'hunter2'}", "{'password': '[redacted]'}"),
        ('["PASSWORD=", "x"]', '["PASSWORD=", "x"]'),
        ('["FOO=bar", "x"]', '["FOO=[redacted]", "x"]'),
        ("FOO='a b'c", "FOO=[redacted]"),
        ("FOO='a b", "FOO=[redacted]"),
        ("wandb_api_key: " + TAIL, "wandb_api_key: [redacted]"),
        ("HOME=/root PATH=/bin:/usr/bin run", "HOME=[redacted] PATH=[redacted] run"),
        ("env SECRET_NAME='a b' x", "env SECRET_NAME=[redacted] x"),
    ],
)
def test_credentials(text: str, stored: str) -> None:
    assert redact(text) == stored
    assert redact(stored) == stored


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#12",
        "execute_context_1(512)_generation_7(7)",
        "step[DECODE bs=16]",
        "step[EXTEND bs=4 toks=1024]",
        "gpu_model_runner: forward",
        "torch/nn/modules/module.py(1532): _call_impl",
        "nn.Module: Linear_0",
        "## Call CompiledFxGraph fx4v7k2q3w5e6r7t8y9u0i1o2p3a4s5d6f7g8h9j0k ##",
        "triton_poi_fused__to_copy_add_mul_0",
        "kernel[XBLOCK=16, R0_BLOCK=64, num_warps=4]",
        "Memcpy HtoD (Pageable -> Device)",
        "tokenizer: encode_batch tokens=512",
        "cudaLaunchKernelExC",
        "nccl:all_reduce",
        "<built-in method acquire of _thread.lock object at 0x7f3c5c0d4b40>",
        "a == b, x=1, y='two'",
        "batch_size=32 key=value",
    ],
)
def test_ordinary_names(name: str) -> None:
    assert redact(name) == name


def test_kernel_names() -> None:
    if not KERNEL_NAMES.exists():
        pytest.skip("no list of kernel names beside this checkout")
    with KERNEL_NAMES.open(encoding="utf-8", newline="") as lines:
        names = [row["name"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    assert len(names) > 100
    assert [name for name in names if redact(name) != name] == []


fragments = st.sampled_from(
    [
        *("hf_", TAIL, "sk-", "=", ":", " ", "Bearer ", "basic ", "TOKEN", "token", "password", "FOO", "'", '"', "://"),
        *("@", "me", ",", ";", "eyJ", ".", "[redacted]", "123", "(", "&", "AKIA", "\n", "-----BEGIN PRIVATE KEY-----"),
        *("_", "-", "authorization", "[", "x" * 8),
    ]
)


@given(st.one_of(st.text(), st.lists(fragments, max_size=12).map("".join)))
@settings(max_examples=1500, deadline=None)
def test_blanking_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)
