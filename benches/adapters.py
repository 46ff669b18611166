#!/usr/bin/env python3
"""Adapters between PEFT and the command, of a small Llama and a small GPT-2 with random weights.

    cargo build && python3 benches/adapters.py target/debug/tiebreak

Needs torch, transformers and peft. PEFT writes adapters, whose B are no zeros; the command imports them beside the model, trains three steps, and
exports the adapters and the merged model. The script prints the largest difference of our logits to those that PEFT and transformers compute in
fp32, divided by the largest logit, with four digits. Each has to be within 1e-4.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

BAR = 1e-4
LLAMA = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    max_position_embeddings=16, initializer_range=0.3)
GPT2 = GPT2Config(vocab_size=97, n_positions=16, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0,
                  attn_pdrop=0.0)


def command(*arguments):
    subprocess.run([sys.argv[1], *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def logits(what, place, name):
    command("logits", what, "--inputs", place / "inputs.npy", "--output", place / name, "--digits", 4)
    return torch.tensor(numpy.load(place / name)).reshape(3, 16, -1)


def compare(what, ours, theirs):
    gap = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"| {what} | {gap:.1e} |")
    assert gap < BAR, what


def job_of(place):
    """The job that import wrote, changed to three steps on random tokens."""
    path = place / "job.toml"
    text = path.read_text()
    for old, new in [("steps = 100", "steps = 3"), ("micro_batches = 8", "micro_batches = 1"), ("warmup = 10", "warmup = 1"),
                     ("peak = 3e-5", "peak = 1e-2")]:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text + "\n[digits]\nall = 4\n")
    return path


@torch.no_grad()
def check(kind, model, targets, place):
    model.eval().save_pretrained(place / "base")
    lora = LoraConfig(r=4, lora_alpha=6, target_modules=targets, fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(place / "adapter")
    inputs = torch.randint(0, 97, (3, 16))
    numpy.save(place / "inputs.npy", inputs.numpy().astype(numpy.int32))
    numpy.save(place / "tokens.npy", torch.randint(0, 97, (400,)).numpy().astype(numpy.uint16))
    command("import", place / "base", "--adapter", place / "adapter", "--output", place)
    job = job_of(place)
    compare(f"{kind}, imported", logits(job, place, "imported.npy"), adapted(inputs).logits)
    command("train", job, "--out", place / "run")
    command("export", place / "run", "--output", place / "out")
    command("export", place / "run", "--merged", "--output", place / "merged")
    ours = logits(place / "run", place, "trained.npy")
    loaded = PeftModel.from_pretrained(type(model).from_pretrained(place / "base"), place / "out").eval()
    compare(f"{kind}, trained, exported, loaded by PEFT", ours, loaded(inputs).logits)
    merged = type(model).from_pretrained(place / "merged").eval()
    compare(f"{kind}, trained, merged, loaded by transformers", ours, merged(inputs).logits)


def main():
    torch.manual_seed(1)
    for kind, model, targets in [("llama", LlamaForCausalLM(LLAMA), ["q_proj", "v_proj", "down_proj"]), ("gpt2", GPT2LMHeadModel(GPT2), "all-linear")]:
        with tempfile.TemporaryDirectory() as place:
            check(kind, model, targets, pathlib.Path(place))


if __name__ == "__main__":
    main()
