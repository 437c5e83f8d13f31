"""A small serving script in plain torch: one prefill, then batched greedy decode with a KV cache.

The model is a decoder-only transformer with random weights, so there is nothing to download. Each step is named as
vLLM names its own, execute_context_<prefills>(<tokens>)_generation_<decodes>(<tokens>), and so shows up as a serving
step in a trace:

    tracekit collect -o trace.parquet -- python sample_traces/serve.py
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    """Dimensions of the model."""

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 2
    heads: int = 8
    positions: int = 128


class Attention(nn.Module):
    """Causal self-attention that keeps the keys and values of earlier steps."""

    def __init__(self, size: Size, batch: int, device: str) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)
        shape = (batch, size.heads, size.positions, size.hidden // size.heads)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Mix x, (batch, tokens, hidden), whose first token has position `start`."""
        batch, tokens, hidden = x.shape
        end = start + tokens
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        mixed = F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end], is_causal=tokens > 1)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return out


class Layer(nn.Module):
    """Attention and a gated feed-forward block, each behind a norm and around a residual."""

    def __init__(self, size: Size, batch: int, device: str) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(size.hidden)
        self.attention = Attention(size, batch, device)
        self.norm2 = nn.RMSNorm(size.hidden)
        self.gate_up = nn.Linear(size.hidden, 8 * size.hidden, bias=False)
        self.down = nn.Linear(4 * size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Transform x, (batch, tokens, hidden)."""
        x = x + self.attention(self.norm1(x), start)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        down: Tensor = self.down(F.silu(gate) * up)
        return x + down


class Model(nn.Module):
    """Token ids in, logits of the last position out."""

    def __init__(self, size: Size, batch: int, device: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        self.layers = nn.ModuleList(Layer(size, batch, device) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)

    def forward(self, ids: Tensor, start: int) -> Tensor:
        """Logits, (batch, vocabulary), of the token after `ids`, (batch, tokens)."""
        where = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(where)
        for layer in self.layers:
            x = layer(x, start)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


@torch.inference_mode()
def serve(model: Model, prompts: Tensor, new_tokens: int) -> tuple[Tensor, list[float]]:
    """Answer a batch of prompts of equal length; returns the new ids and each step's seconds."""
    batch, length = prompts.shape
    ids, start, answer, seconds = prompts, 0, [], []
    for _ in range(new_tokens):
        prefill = start == 0
        name = f"execute_context_{batch if prefill else 0}({batch * length if prefill else 0})"
        name += f"_generation_{0 if prefill else batch}({0 if prefill else batch})"
        begin = time.perf_counter()
        with torch.profiler.record_function(name):
            logits = model(ids, start)
            start += ids.shape[1]
            ids = logits.argmax(dim=-1, keepdim=True)
            answer.append(ids.tolist())  # the tokens go out to the clients: the host waits here
        seconds.append(time.perf_counter() - begin)
    return torch.tensor(answer).squeeze(-1).T, seconds


def main() -> None:
    """Serve one batch and report the latencies a client would see."""
    parser = argparse.ArgumentParser(description="Serve one batch with a small random transformer.")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=32, help="tokens in each prompt")
    parser.add_argument("--new-tokens", type=int, default=24)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on a CPU, more only wait for each other with a model this small
    size = Size(positions=arguments.prompt + arguments.new_tokens)
    model = Model(size, arguments.batch, device).to(device).eval()
    prompts = torch.randint(size.vocabulary, (arguments.batch, arguments.prompt), device=device)
    answer, seconds = serve(model, prompts, arguments.new_tokens)
    decode = sorted(seconds[1:])
    print(f"{answer.numel()} tokens for {arguments.batch} requests on {device}")
    print(f"TTFT {seconds[0] * 1e3:.1f} ms, TPOT {decode[len(decode) // 2] * 1e3:.2f} ms (median)")


if __name__ == "__main__":
    main()
