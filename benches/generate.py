#!/usr/bin/env python3
"""What generate() of transformers writes with a model before and after it went through tiebreak: the same tokens, and the same end.

A small GPT-2 with random weights has tokens of its own that begin, end and fill a text, a generation_config.json, a tokenizer and a chat template. It is
imported, trained and exported. The initial state is compared before and after; of the trained one the export is, with what the original has beside the same weights.

    cargo build --release --bin tiebreak
    python3 benches/generate.py --tiebreak target/release/tiebreak

Needs torch, transformers and numpy.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<begin>", "<end>", "<fill>", "<user>", "<model>"]
BEGIN, END, FILL = 1, 2, 3
TEXT = "The ship left the harbour at noon, and the wind was from the west. The captain counted the sails twice; the crew counted the hours. "
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
MESSAGES = [{"role": "user", "content": "Where was the wind?"}, {"role": "model", "content": "In the west."}]
CONTEXT = 96
NEW = 48


class Checks:
    """Runs the command, and says what holds."""

    def __init__(self, tiebreak):
        self.tiebreak, self.failed, self.held = tiebreak, False, 0

    def run(self, *arguments):
        """Runs `tiebreak` with these arguments; ends the script if it fails."""
        done = subprocess.run([self.tiebreak, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"tiebreak {' '.join(map(str, arguments))}: {done.stderr}")

    def holds(self, what, is_so):
        """Prints what has to hold."""
        print(f"{what}: {'yes' if is_so else 'NO'}")
        self.failed |= not is_so
        self.held += is_so


def tokenizer():
    """A byte-level BPE of the text, as transformers has it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", bos_token="<begin>", eos_token="<end>", pad_token="<fill>")
    fast.chat_template = TEMPLATE
    return fast


def written(model, ids, **more):
    """The tokens that generate() adds to a text."""
    ids = torch.tensor([ids])
    return model.generate(ids, attention_mask=torch.ones_like(ids), **more)[0, ids.shape[1] :].tolist()


def original(vocabulary, prompt):
    """A random model that ends its text behind the prompt by <end>, neither at once nor at the bound."""
    # Larger weights than training begins with, so that what follows is no repetition.
    tokens = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": FILL}
    config = GPT2Config(vocab_size=vocabulary, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=4, initializer_range=0.3, **tokens)
    for seed in range(100):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
        free = written(model, prompt, eos_token_id=[], do_sample=False, max_new_tokens=NEW)
        late = [token for at, token in enumerate(free) if at > 4 and token not in free[:at] + prompt and token >= len(SPECIAL)]
        if late and END not in free:
            # The token changes places with <end>, in the table of tokens and so in the head.
            table = model.transformer.wte.weight.data
            table[[late[0], END]] = table[[END, late[0]]]
            model.generation_config = GenerationConfig(**tokens, do_sample=False, max_new_tokens=NEW)
            return model
    return sys.exit("no seed gives a text that ends")


def edit(job, *changes):
    """Replaces parts of a job file."""
    text = job.read_text()
    for old, new in changes:
        assert old in text, f"{old!r} is not in {job}"
        text = text.replace(old, new)
    job.write_text(text)


def loaded(folder):
    """The model and the tokenizer of a folder."""
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def compare(checks, name, folder, theirs, ours):
    """Checks what an exported folder has to have in common with its origin; `theirs` has the expected weights."""
    model, words = loaded(ours)
    original_words = AutoTokenizer.from_pretrained(folder)
    prompt = original_words("The captain")["input_ids"]
    expected, found = written(theirs, prompt), written(model, prompt)
    ends = f"{len(found)} tokens, {'which <end> ends' if found[-1] == END else 'which the bound ends'}"
    checks.holds(f"{name}: generate() writes the same ({ends})", found == expected)
    settings = [m.generation_config.to_dict() for m in (theirs, model)]
    checks.holds(f"{name}: generation_config", settings[0] == settings[1] and model.generation_config.eos_token_id == END)
    ids = [t(TEXT)["input_ids"] for t in (original_words, words)]
    checks.holds(f"{name}: the tokenizer's ids, and the text again", ids[0] == ids[1] and words.decode(ids[1]) == TEXT)
    chats = [t.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True) for t in (original_words, words)]
    checks.holds(f"{name}: the chat template", chats[0] == chats[1] and "<user>Where was the wind?<end>" in chats[0])
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".json", ".jinja", ".txt", ".model"))
    same = [name for name in names if (ours / name).is_file() and (folder / name).read_bytes() == (ours / name).read_bytes()]
    checks.holds(f"{name}: byte for byte {', '.join(names)}", same == names and "config.json" in names and len(names) > 3)
    return found


def without(folder, to, name):
    """A copy of a released folder without one file."""
    shutil.copytree(folder, to)
    (to / name).unlink()
    return to


def through(checks, name, folder, ids):
    """Imports, trains and exports a released folder, and compares before and after."""
    np.save(folder / "tokens.npy", np.array(ids * 40, dtype=np.uint16))
    theirs, _ = loaded(folder)
    checks.run("import", folder)
    job, run = folder / "job.toml", folder.parent / f"{folder.name}-run"
    edit(job, ("steps = 100", "steps = 3"), ("micro_batches = 8", "micro_batches = 2"), ("warmup = 10", "warmup = 0"), ("peak = 3e-5", "peak = 1e-3"))
    checks.run("train", job, "--out", run)
    first, last = (folder.parent / f"{folder.name}-{step}" for step in ("first", "last"))
    checks.run("export", run, "--step", 0, "--output", first)
    checks.run("export", run, "--output", last)
    # So that only what the release has is compared.
    for mine in ("job.toml", "tokens.npy"):
        (folder / mine).unlink()
    weights = [(path / "model.safetensors").read_bytes() for path in (folder, first, last)]
    checks.holds(f"{name}: the weights of step 0 are the released ones, those of the end are not", weights[0] == weights[1] != weights[2])
    found = compare(checks, f"{name}, step 0", folder, theirs, first)
    checks.holds(f"{name}, step 0: the text ends at <end> before the bound", found[-1] == END and 4 < len(found) < NEW)
    trained, _ = loaded(last)
    theirs.load_state_dict(trained.state_dict())
    compare(checks, f"{name}, trained", folder, theirs, last)


def from_seed(checks, folder, ids):
    """A model that was trained from its seed, on tokens with a tokenizer beside them."""
    home = folder.parent / "seed"
    kept = home / "tokens.npy.tokenizer"
    kept.mkdir(parents=True)
    np.save(home / "tokens.npy", np.array(ids * 40, dtype=np.uint16))
    names = [path.name for path in folder.iterdir() if path.suffix in (".json", ".jinja") and path.name != "config.json"]
    for name in names:
        shutil.copy(folder / name, kept / name)
    keys = json.loads((folder / "config.json").read_text())
    sizes = f"vocabulary = {keys['vocab_size']}, context = 32, layers = 1, heads = 2, width = 16"
    (home / "job.toml").write_text(
        f'steps = 2\nmodel = {{ kind = "gpt", {sizes} }}\ndata = {{ kind = "tokens", path = "tokens.npy", dtype = "u16" }}\n'
        "batch = { micro_batch = 1 }\noptimizer = { kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }\nschedule = { peak = 1e-2 }\n"
    )
    checks.run("train", home / "job.toml", "--out", home / "run")
    checks.run("export", home / "run", "--output", home / "out")
    model, words = loaded(home / "out")
    ours, theirs = model.generation_config, GenerationConfig.from_pretrained(folder)
    checks.holds("from the seed: generation_config", ours.to_dict() == theirs.to_dict() and ours.eos_token_id == END)
    tokens = [model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id]
    checks.holds("from the seed: config.json has the tokens", tokens == [BEGIN, END, FILL])
    checks.holds("from the seed: the tokenizer's ids", words(TEXT)["input_ids"] == ids)


def main():
    """Runs all checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiebreak", default="target/release/tiebreak", help="the command")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    checks = Checks(str(pathlib.Path(arguments.tiebreak).resolve()))
    with tempfile.TemporaryDirectory() as home:
        folder = pathlib.Path(home, "gpt2")
        words = tokenizer()
        model = original(len(words), words("The captain")["input_ids"])
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        ids = words(TEXT)["input_ids"]
        from_seed(checks, folder, ids)
        bare = without(folder, pathlib.Path(home, "bare"), "generation_config.json")
        through(checks, "GPT-2", folder, ids)
        through(checks, "GPT-2 without generation_config.json", bare, ids)
    print(f"RESULT: {checks.held} hold")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
