"""The CUDA engine's benchmark beside its peers, as Markdown.

    python3 benches/cuda_report.py --ours BENCH-OUTPUT --out FILE [--checks FILE]

BENCH-OUTPUT is what `cargo bench --bench cuda` printed. The peers are measured here, on the same GPU right after it: PyTorch's (cuBLAS')
products of the same shapes in fp32, TF32, bf16 and int8, its fused attention in bf16 and fp32, and a step of the same GPT-2 in bf16
autocast and in fp32, eager, with that attention. Without PyTorch or a GPU the peers' columns say so. `cuda-bridge/check-on-gpu.sh` calls this.
"""

import argparse
import json
import statistics
import sys
import time
from datetime import date
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None


def median(run, rounds=5, each=5):
    """Median seconds of a run, after a round that warms up; synchronised, so that launches count too."""
    times = []
    for number in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(each):
            run()
        torch.cuda.synchronize()
        if number:
            times.append((time.perf_counter() - begin) / each)
    return statistics.median(times)


def products(m, n, k):
    """Seconds of A (m, k) times B (n, k) transposed, by kind."""
    found = {}
    a, b = (torch.rand(rows, k, device="cuda") * 2 - 1 for rows in (m, n))
    for name, tf32 in (("fp32", False), ("TF32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[name] = median(lambda: a @ b.T)
    torch.backends.cuda.matmul.allow_tf32 = False
    half_a, half_b = a.bfloat16(), b.bfloat16()
    found["bf16"] = median(lambda: half_a @ half_b.T)
    bytes_a, bytes_b = ((x * 127).to(torch.int8) for x in (a, b))
    try:
        found["int8"] = median(lambda: torch._int_mm(bytes_a, bytes_b.T))
    except RuntimeError as error:
        print(f"int8 of {m} x {n} x {k}: {error}", file=sys.stderr)
    return found


def attention(samples, heads, positions, channels):
    """Seconds of causal attention with its gradients, in bf16 and in fp32."""
    found = []
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v, dy = (torch.randn(samples, heads, positions, channels, device="cuda", dtype=dtype) for _ in range(4))
        inputs = [x.requires_grad_() for x in (q, k, v)]

        def run():
            y = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
            torch.autograd.grad(y, inputs, dy)

        found.append(median(run))
    return found


class Block(torch.nn.Module if torch else object):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module if torch else object):
    def __init__(self, vocabulary=50257, context=1024, layers=12, heads=12, width=768):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def step(autocast, micro_batch, micro_batches, context=1024):
    """Seconds of a training step of GPT-2 124M: AdamW, clipping, accumulation as in the engine's benchmark."""
    torch.manual_seed(1)
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, 50257, (micro_batch, context), device="cuda")

    def run():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(micro_batches):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(tokens, tokens)
            (loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds = median(run, rounds=3, each=1)
    del model, optimizer
    torch.cuda.empty_cache()
    return seconds


def rows(table):
    head, *body = table
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--checks", type=Path, help="a Markdown text that says what was checked")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    ours = [json.loads(line) for line in args.ours.read_text().splitlines() if line.startswith("{")]
    peers = torch is not None and torch.cuda.is_available()
    engine = next((row["engine"] for row in ours if row["kind"] == "engine"), "no CUDA engine")
    library = f"PyTorch {torch.__version__}" if torch else "no PyTorch: peers were not measured"
    text = [f"# {engine}, {date.today()}", "", f"By `cuda-bridge/check-on-gpu.sh`. Peers: {library}.", ""]
    if args.checks:
        text += [args.checks.read_text().rstrip(), ""]

    kinds = ["fp32", "TF32", "bf16", "int8"]
    table = [["M x N x K", "digits", "ms", "TFLOP/s", *(f"time of {kind} / ours" for kind in kinds)]]
    measured = {}
    for row in ours:
        if row["kind"] != "product":
            continue
        shape = (row["m"], row["n"], row["k"])
        if shape not in measured:
            measured[shape] = products(*shape) if peers else {}
        rate = 2 * shape[0] * shape[1] * shape[2] / row["seconds"] / 1e12
        ratios = [f"{measured[shape][kind] / row['seconds']:.2f}" if kind in measured[shape] else "-" for kind in kinds]
        table.append([" x ".join(map(str, shape)), str(row["digits"]), f"{row['seconds'] * 1e3:.2f}", f"{rate:.1f}", *ratios])
    text += ["## Products, binary32 to binary32 (digitising and rounding back included)", "", rows(table), ""]
    if measured and peers:
        table = [["M x N x K", *(f"{kind}, ms" for kind in kinds)]]
        for shape, found in measured.items():
            cells = [f"{found[kind] * 1e3:.2f}" if kind in found else "-" for kind in kinds]
            table.append([" x ".join(map(str, shape)), *cells])
        text += [rows(table), ""]

    table = [["samples x heads x positions x channels", "ms", "by a kernel for each node, ms", "time of bf16 / ours", "time of fp32 / ours"]]
    for row in ours:
        if row["kind"] != "attention":
            continue
        shape = [row[name] for name in ("samples", "heads", "positions", "channels")]
        ratios = [f"{peer / row['seconds']:.2f}" for peer in attention(*shape)] if peers else ["-", "-"]
        times = [f"{row[name] * 1e3:.2f}" for name in ("seconds", "seconds_by_node")]
        table.append([" x ".join(map(str, shape)), *times, *ratios])
    if len(table) > 1:
        text += ["## Attention with its gradients, exact, default digits, against PyTorch's fused attention", "", rows(table), ""]

    table = [["parameters", "tokens a step", "digits", "s", "tokens/s", "committing", "/ bf16 autocast", "/ fp32"]]
    steps = {}
    for row in ours:
        if row["kind"] != "step":
            continue
        full = row["parameters"] > 100e6
        shape = (row["micro_batch"], row["tokens"] // row["micro_batch"] // 1024)
        if peers and full and shape not in steps:
            steps[shape] = [step(autocast, *shape) for autocast in (True, False)]
        ratios = [f"{row['seconds'] / peer:.2f}" for peer in steps[shape]] if peers and full else ["-", "-"]
        commit = f"{row['commit_seconds'] * 1e3:.1f} ms ({100 * row['commit_seconds'] / row['seconds']:.1f} %)"
        table.append([
            str(row["parameters"]), str(row["tokens"]), row["digits"], f"{row['seconds']:.3f}",
            f"{row['tokens'] / row['seconds']:.0f}", commit, *ratios,
        ])
    text += ["## Whole steps of GPT-2", "", rows(table), ""]
    for shape, (half, single) in steps.items():
        text += [f"PyTorch, micro-batches of {shape[0]} x 1024, {shape[1]} of them: bf16 autocast {half:.3f} s, fp32 {single:.3f} s.", ""]
    table = [["kernels", "tokens a step", "native step, s", "logged, s", "logged / native", "/ bf16 autocast", "decisions", "log, MB"]]
    for row in ours:
        if row["kind"] != "logged":
            continue
        shape = (row["micro_batch"], row["tokens"] // row["micro_batch"] // 1024)
        peer = f"{row['seconds'] / steps[shape][0]:.2f}" if shape in steps else "-"
        table.append([
            row["engine"].split(", native products by ")[-1].split(", ")[0], str(row["tokens"]), f"{row['native_seconds']:.3f}",
            f"{row['seconds']:.3f}", f"{row['seconds'] / row['native_seconds']:.2f}", peer,
            f"{row['decisions']} of {row['values']}", f"{row['log_bytes'] / 1e6:.2f}",
        ])
    if len(table) > 1:
        text += ["## Logged steps of GPT-2, bfloat16 grid: roundings and log against the same kernels without (asked: 1.3 at most)", "", rows(table), ""]
    args.out.write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
