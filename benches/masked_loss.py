#!/usr/bin/env python3
"""Losses on answers only beside PyTorch's, of a small Llama and a small GPT-2: whole weights, and adapters of PEFT.

    cargo build && python3 benches/masked_loss.py target/debug/tiebreak

Needs torch, transformers and peft. Two steps of SGD of three micro-batches, of which one counts no target, in transformers' own way: labels of -100,
and the sum over a step's micro-batches divided by `num_items_in_batch`. The script prints the largest difference of the losses, and of the changes of
the weights relative to the largest change, with four digits. Each has to be within 1e-4.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

BAR, CONTEXT, STEPS, MICRO, MICROS, RATE, IGNORE = 1e-4, 16, 2, 2, 3, 0.5, 96
LLAMA = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    max_position_embeddings=CONTEXT, initializer_range=0.3)
GPT2 = GPT2Config(vocab_size=97, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0,
                  attn_pdrop=0.0)


def command(*arguments):
    return subprocess.run([sys.argv[1], *map(str, arguments)], check=True, stdout=subprocess.PIPE).stdout


def job_of(place, adapted):
    path = place / "job.toml"
    text = path.read_text()
    head = text[: text.index("[data]")].replace("steps = 100", f"steps = {STEPS}")
    if adapted and "[model.lora]" not in head:
        head += text[text.index("[model.lora]") :].split("\n[")[0] + "\n"
    head = "\n".join(line for line in head.splitlines() if not line.startswith("clip_norm"))
    path.write_text(head + f"""
[data]
kind = "tokens"
path = "tokens.npy"
dtype = "u16"
mask = "mask.npy"
windows = "separate"
sampling = "in_order"
[loss]
ignore = {IGNORE}
[optimizer]
kind = "sgd"
momentum = 0.0
weight_decay = 0.0
[schedule]
peak = {RATE}
[batch]
micro_batch = {MICRO}
micro_batches = {MICROS}
[digits]
all = 4
""")
    return path


def check(kind, model, adapted, place):
    tokens = torch.randint(0, IGNORE, (STEPS, MICROS, MICRO, CONTEXT + 1))
    mask = torch.rand(tokens.shape) < 0.4
    mask[1, 1] = False
    numpy.save(place / "tokens.npy", tokens.numpy().astype(numpy.uint16).reshape(-1))
    numpy.save(place / "mask.npy", mask.numpy().astype(numpy.uint8).reshape(-1))
    model.save_pretrained(place / "base")
    extra = []
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(place / "adapter")
        extra = ["--adapter", place / "adapter"]
    command("import", place / "base", *extra, "--output", place)
    command("train", job_of(place, adapted), "--out", place / "run")
    command("export", place / "run", "--output", place / "out")
    losses = [json.loads(line)["loss"] for line in (place / "run" / "metrics.jsonl").read_text().splitlines() if "loss" in json.loads(line)]

    model.train()
    labels = torch.where(mask, tokens, -100)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    gap = 0.0
    for step in range(STEPS):
        counted = (labels[step, :, :, 1:] != -100).sum()
        total = 0.0
        model.zero_grad()
        for micro in range(MICROS):
            loss = model(tokens[step, micro][:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(loss.reshape(-1, 97), labels[step, micro][:, 1:].reshape(-1), ignore_index=-100, reduction="sum") / counted
            loss.backward()
            total += loss.item()
        gap = max(gap, abs(total - losses[step]))
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    out = {}
    for file in (place / "out").glob("*.safetensors"):
        out |= load_file(file)
    moved = largest = 0.0
    for name, p in model.named_parameters():
        if name in before:
            own = out.get(name.replace(".default", ""))
            own = out.get(name.removeprefix("transformer.")) if own is None else own
            moved = max(moved, (p.detach() - own.reshape(p.shape)).abs().max().item())
            largest = max(largest, (p.detach() - before[name]).abs().max().item())
    print(f"| {kind}{', adapters' if adapted else ''} | {gap:.1e} | {moved / largest:.1e} |")
    assert gap < BAR and moved < BAR * largest


def main():
    torch.manual_seed(1)
    for adapted in (False, True):
        for kind, model in [("llama", LlamaForCausalLM(LLAMA)), ("gpt2", GPT2LMHeadModel(GPT2))]:
            with tempfile.TemporaryDirectory() as place:
                check(kind, model, adapted, pathlib.Path(place))


if __name__ == "__main__":
    main()
