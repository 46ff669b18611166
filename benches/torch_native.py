#!/usr/bin/env python3
"""A training step whose products are PyTorch's, beside the same step by the engine's default kernel, and PyTorch's own binary32 step.

    pip install './python[torch]'
    benches/torch_native.py [--device cpu|cuda] [--width 256] [--layers 4] [--context 128] [--samples 8] [--steps 6] [--rounds 3]

The model is a GPT-2 as its paper has it, of random weights, in the logged profile on the grids of bfloat16 and of binary32. The rounds take the ways in turn. A step
is the median of the steps after the first, over all rounds. The table goes to the page docs/how-to/capture.md by hand, with its line about the machine.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import tiebreak


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        samples, positions, width = x.shape
        heads = [part.view(samples, positions, self.heads, 64).transpose(1, 2) for part in self.all(x).split(width, dim=2)]
        return self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).contiguous().view(samples, positions, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.attention, self.behind = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.behind(x))


class Gpt(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(sizes.vocabulary, sizes.width), nn.Embedding(sizes.context, sizes.width)
        self.blocks, self.last = nn.Sequential(*(Block(sizes.width) for _ in range(sizes.layers))), nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.last(self.blocks(self.tokens(tokens) + self.positions(positions))))


def loss_of(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def own_steps(model, optimizer, sizes, device):
    """The seconds of PyTorch's steps."""
    model = model.to(device)
    tokens = torch.randint(0, sizes.vocabulary, (sizes.samples, sizes.context + 1), device=device)
    seconds = []
    for _ in range(sizes.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def our_steps(captured, data, sizes, out, **native):
    """The seconds of a run's steps."""
    run = tiebreak.train(captured.job(data, sizes.steps), out=out, **native)
    return [line["seconds"] for line in run.metrics if "loss" in line][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in [("width", 256), ("layers", 4), ("context", 128), ("samples", 8), ("steps", 6), ("rounds", 3), ("vocabulary", 1024)]:
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--device", default="cpu", help="where PyTorch multiplies")
    sizes = parser.parse_args()
    torch.manual_seed(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        np.save("tokens.npy", np.random.default_rng(1).integers(0, sizes.vocabulary, 1 << 16, dtype=np.uint16))
        data = {"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}
        model = Gpt(sizes)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        example = torch.zeros(sizes.samples, sizes.context).long(), torch.zeros(sizes.samples, sizes.context).long()
        found = {}
        grids = {"bfloat16": {}, "binary32": {"bits": 32}}
        captured = {grid: tiebreak.capture(model, loss_of, optimizer, example, out=grid, rounding=table) for grid, table in grids.items()}
        for number in range(sizes.rounds):
            for grid, program in captured.items():
                torch_native = {"native": "torch", "native_device": sizes.device}
                for way, native in [(f"products by PyTorch on {sizes.device}, grid of {grid}", torch_native), (f"default kernel, grid of {grid}", {})]:
                    found.setdefault(way, []).extend(our_steps(program, data, sizes, Path(f"{number}-{grid}-{len(native)}"), **native))
            found.setdefault(f"PyTorch's own binary32 step on {sizes.device}", []).extend(own_steps(model, optimizer, sizes, sizes.device))
    own = statistics.median(found[f"PyTorch's own binary32 step on {sizes.device}"])
    print("| step | seconds | times PyTorch's own |\n|---|---|---|")
    for way, seconds in found.items():
        print(f"| {way} | {statistics.median(seconds):.3f} | {statistics.median(seconds) / own:.1f} |")
    print(f"\n{parameters / 1e6:.1f} M parameters, {sizes.samples} x {sizes.context} tokens, {sizes.steps - 1} steps in each of {sizes.rounds} rounds.")
    print(f"{date.today()}, PyTorch {torch.__version__}, {os.cpu_count()} cores, {platform.machine()}, load average {load:.1f} at the beginning and {os.getloadavg()[0]:.1f} at the end.")


if __name__ == "__main__":
    main()
