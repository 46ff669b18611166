"""The time of a training step beside PyTorch's in fp32, on the same cores in the same run:

    venv/bin/python benches/step_peer.py [--threads 2] [--rounds 3] [MODEL ...]

runs `cargo bench --bench step` and PyTorch in turn and prints the ratio of the median steps. MODEL is `gpt-10m` (default: all) or
`gpt2-124m`: transformers' GPT-2 without dropout, 8 x 128 and 1 x 512 tokens, AdamW, gradients clipped. Needs torch and transformers.
"""

import argparse
import re
import statistics
import subprocess
import sys
import time

# The models of benches/step.rs: their configuration in transformers, and the batch.
MODELS = {
    "gpt-10m": (dict(vocab_size=256, n_positions=128, n_embd=368, n_layer=6, n_head=8), (8, 128), 12),
    "gpt2-124m": (dict(), (1, 512), 6),
}
WITHOUT_DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def peer(model, threads):
    """Prints the seconds of each of PyTorch's steps but the first two."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    config, (samples, tokens), steps = MODELS[model]
    network = GPT2LMHeadModel(GPT2Config(**config, **WITHOUT_DROPOUT)).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    batch = torch.randint(0, 97, (samples, tokens + 1))
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = network(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step >= 2:
            print(time.perf_counter() - start)


def ours(model):
    """The seconds of a step and the MiB at most of each case of the model, by its digits."""
    command = ["cargo", "bench", "--bench", "step", "--", model]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cases = re.findall(r"^\S+ d=(\S+): .*?([\d.]+) s per step.*\n +at most (\d+) MiB", text, re.MULTILINE)
    if not cases:
        sys.exit(f"`{' '.join(command)}` printed no case of {model}:\n{text}")
    return {digits: (float(seconds), int(mib)) for digits, seconds, mib in cases}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="gpt-10m, gpt2-124m; all by default")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads; the CPU engine takes all cores")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer, args.threads)
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    for model in args.models or MODELS:
        theirs, cases = [], {}
        for _ in range(args.rounds):
            command = [sys.executable, __file__, "--peer", model, "--threads", str(args.threads)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            theirs.append(statistics.median(map(float, text.split())))
            for digits, case in ours(model).items():
                cases.setdefault(digits, []).append(case)
        fp32 = statistics.median(theirs)
        print(f"{model}: PyTorch fp32 {fp32:.3f} s per step ({min(theirs):.3f} to {max(theirs):.3f})")
        for digits, runs in cases.items():
            seconds, mib = [run[0] for run in runs], max(run[1] for run in runs)
            median = statistics.median(seconds)
            print(f"    d = {digits}: {median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f}), "
                  f"{median / fp32:.2f} of PyTorch's; at most {mib} MiB")


main()
