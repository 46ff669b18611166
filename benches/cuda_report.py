"""The CUDA engine's benchmark beside its peers, as Markdown.

    python3 benches/cuda_report.py LINES...

LINES are files of JSON objects, a line each: those of `cargo bench --bench cuda` and of `benches/cuda_peers.py`. Sections are of what is in them, in whatever
part it was measured. `cuda-bridge/check-on-gpu.sh` calls this.
"""

import json
import sys
from pathlib import Path

KINDS = ["fp32", "TF32", "bf16", "int8"]


def rows(table):
    head, *body = table
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def shape_of(row):
    return (row["m"], row["n"], row["k"])


def micro(of):
    lines = [["measured", "", ""]]
    for row in of("micro"):
        lines.append([row["name"], f"{row['value']:.2f}", row["unit"]] if "value" in row else [row["name"], "-", row["reason"]])
    for row in of("peer_lt"):
        name = f"cuBLASLt s8 of {' x '.join(map(str, shape_of(row)))}"
        lines.append([name, f"{row['tops']:.0f}", f"TOPS ({row['algorithms']} algorithms tried)"] if "tops" in row else [name, "-", row["reason"]])
    return "What the GPU gives", lines


def products(of):
    peers = {shape_of(row): row["seconds"] for row in of("peer_product") if "seconds" in row}
    best = {shape_of(row): row["seconds"] for row in of("peer_lt") if "seconds" in row}
    lines = [["M x N x K", "digits", "ms", "TFLOP/s", *(f"time of {kind} / ours" for kind in KINDS), "time of cuBLASLt int8 / ours"]]
    for row in of("product"):
        shape, seconds = shape_of(row), row["seconds"]
        found = peers.get(shape, {})
        ratios = [f"{found[kind] / seconds:.2f}" if kind in found else "-" for kind in KINDS]
        ratios.append(f"{best[shape] / seconds:.2f}" if shape in best else "-")
        rate = 2 * shape[0] * shape[1] * shape[2] / seconds / 1e12
        lines.append([" x ".join(map(str, shape)), str(row["digits"]), f"{seconds * 1e3:.2f}", f"{rate:.1f}", *ratios])
    return "Products, binary32 to binary32 (digitising and rounding back included)", lines


def peer_products(of):
    lines = [["M x N x K", *(f"{kind}, ms" for kind in KINDS)]]
    for row in of("peer_product"):
        found = row.get("seconds", {})
        cells = [f"{found[kind] * 1e3:.2f}" if kind in found else "-" for kind in KINDS]
        lines.append([" x ".join(map(str, shape_of(row))), *cells])
    return "Their peers by PyTorch", lines


def attention(of):
    names = ("samples", "heads", "positions", "channels")
    peers = {tuple(row[name] for name in names): row["seconds"] for row in of("peer_attention") if "seconds" in row}
    lines = [["samples x heads x positions x channels", "ms", "by a kernel for each node, ms", "time of bf16 / ours", "time of fp32 / ours"]]
    for row in of("attention"):
        shape = tuple(row[name] for name in names)
        ratios = [f"{peer / row['seconds']:.2f}" for peer in peers.get(shape, [])] or ["-", "-"]
        times = [f"{row[name] * 1e3:.2f}" for name in ("seconds", "seconds_by_node")]
        lines.append([" x ".join(map(str, shape)), *times, *ratios])
    return "Attention with its gradients, exact, 2 and 3 digits, against PyTorch's fused attention", lines


def peer_steps(of):
    """Seconds by micro-batch, how many of them, and precision."""
    return {(row["micro_batch"], row["micro_batches"], row["precision"]): row["seconds"] for row in of("peer_step") if "seconds" in row}


def steps(of):
    peers = peer_steps(of)
    lines = [["parameters", "tokens a step", "digits", "s", "tokens/s", "committing", "/ bf16 autocast", "/ fp32"]]
    for row in of("step"):
        shape = (row["micro_batch"], row["tokens"] // row["micro_batch"] // 1024)
        found = [peers.get((*shape, precision)) for precision in ("bf16 autocast", "fp32")]
        ratios = [f"{row['seconds'] / peer:.2f}" if peer and row["parameters"] > 100e6 else "-" for peer in found]
        commit = f"{row['commit_seconds'] * 1e3:.1f} ms ({100 * row['commit_seconds'] / row['seconds']:.1f} %)"
        lines.append([
            str(row["parameters"]), str(row["tokens"]), row["digits"], f"{row['seconds']:.3f}",
            f"{row['tokens'] / row['seconds']:.0f}", commit, *ratios,
        ])
    for row in of("peer_step"):
        tokens = row["micro_batch"] * row["micro_batches"] * 1024
        lines.append(["PyTorch", str(tokens), row["precision"], f"{row['seconds']:.3f}" if "seconds" in row else row["reason"], "", "", "", ""])
    return "Whole steps of GPT-2", lines


def nodes(of):
    lines = [["operator", "kernel", "launches", "ms", "%"]]
    for whole in of("nodes"):
        found = sorted(of("node"), key=lambda row: -row["seconds"])
        for row in found[:60]:
            share = 100 * row["seconds"] / max(whole["seconds"], 1e-12)
            lines.append([row["operator"], f"`{row['kernel']}`", str(row["launches"]), f"{row['seconds'] * 1e3:.3f}", f"{share:.1f}"])
        rest = found[60:]
        lines.append([f"{len(rest)} others", "", str(sum(row["launches"] for row in rest)), f"{sum(row['seconds'] for row in rest) * 1e3:.3f}", ""])
        lines.append(["all", "", str(whole["launches"]), f"{whole['seconds'] * 1e3:.3f}", "100"])
    return "A micro-batch and its update, launch by launch, two digits", lines


def digests(of):
    lines = [["launches", "ms", "the longest, ms", "with the host, ms"]]
    for row in of("digests"):
        lines.append([str(row["launches"]), *(f"{row[name] * 1e3:.3f}" for name in ("seconds", "largest", "wall_seconds"))])
    return "The digests of the state, launch by launch", lines


def logged(of):
    peers = peer_steps(of)
    lines = [["kernels", "tokens a step", "native step, s", "logged, s", "logged / native", "/ bf16 autocast", "decisions", "log, MB"]]
    for row in of("logged"):
        peer = peers.get((row["micro_batch"], row["tokens"] // row["micro_batch"] // 1024, "bf16 autocast"))
        lines.append([
            row["engine"].split(", native products by ")[-1].split(", ")[0], str(row["tokens"]), f"{row['native_seconds']:.3f}",
            f"{row['seconds']:.3f}", f"{row['seconds'] / row['native_seconds']:.2f}", f"{row['seconds'] / peer:.2f}" if peer else "-",
            f"{row['decisions']} of {row['values']}", f"{row['log_bytes'] / 1e6:.2f}",
        ])
    return "Logged steps of GPT-2, bfloat16 grid: roundings and log against the same kernels without (asked: 1.3 at most)", lines


def main():
    found = []
    for path in map(Path, sys.argv[1:]):
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # the last line of a program that was ended

    def of(kind):
        return [row for row in found if isinstance(row, dict) and row.get("kind") == kind]

    for row in of("engine")[:1]:
        print(f"\nEngine: {row['engine']}")
    for row in of("peers")[:1]:
        print(f"\nPeers: {row.get('library') or 'NOT CHECKED, ' + row['reason']}")
    for section in (micro, steps, products, peer_products, attention, nodes, digests, logged):
        title, lines = section(of)
        if len(lines) > 1:
            print(f"\n## {title}\n\n{rows(lines)}")


if __name__ == "__main__":
    main()
