"""Encoders and decoders of benches/costs.py: a job of each, and the same model of transformers with random weights.

A model of SMALL sizes has the same form, for trials. Nothing is dropped on either side. Both sides have the same batch of random tokens each step, not the same
weights. The adapters are those of PEFT. `Llama1bInference` has released weights, which one process draws and writes: all sides read these.
"""

import json
import os
import subprocess
import time

VERDE = "Verde (Arun and others 2025, arXiv 2502.19405)"
READ = "RepOps in fp32 on four kinds of NVIDIA GPUs, beside PyTorch with cuBLAS; as readers of the paper quote it, not read in its tables"
ADAMW = '[optimizer]\nkind = "adamw"\nbeta1 = 0.9\nbeta2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.01\n[schedule]\npeak = 5e-5\n'
# Enough windows of random tokens for every step.
TOKENS = 1 << 16


class Failed(Exception):
    """A command's own words about why it failed."""


class Trained:
    """A model that takes training steps on random tokens."""

    PROFILES, PRECISIONS = {"exact": ""}, ("fp32", "bf16")
    ADAPTERS = False

    def __init__(self, small=False):
        if small:
            self.SIZES, self.CONTEXT = self.SMALL, 32

    def prepare(self, folder, _data, _tiebreak):
        import numpy as np
        tokens = np.random.default_rng(1).integers(self.RESERVED, self.SIZES["vocabulary"], TOKENS, dtype=np.uint32)
        np.save(folder / "tokens.npy", tokens)

    def job(self, _profile):
        sizes = "".join(f"{key} = {value}\n" for key, value in self.SIZES.items())
        data = '[data]\nkind = "tokens"\ndtype = "u32"\npath = "tokens.npy"\n'
        return f"[model]\n{self.FORM}context = {self.CONTEXT}\n{sizes}{self.TABLES}{data}{self.DATA}{ADAMW}[batch]\nmicro_batch = {self.SAMPLES}\n"

    def peer(self):
        """A function that computes the loss, what is trained, and the optimizer."""
        import torch
        model = self.network().train()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
        tokens = torch.randint(self.RESERVED, self.SIZES["vocabulary"], (self.SAMPLES, self.CONTEXT))
        labels = self.labels(tokens)
        return lambda: model(input_ids=tokens, labels=labels).loss, leaves, torch.optim.AdamW(leaves, lr=5e-5, weight_decay=0.01)


class Distilbert(Trained):
    TITLE, SAMPLES, CONTEXT = "DistilBERT 66M, masked tokens, 16 x 128", 16, 128
    SIZES = {"vocabulary": 30522, "layers": 6, "heads": 12, "width": 768, "hidden": 3072}
    SMALL = {"vocabulary": 300, "layers": 2, "heads": 2, "width": 32, "hidden": 64}
    FORM, TABLES, RESERVED = 'kind = "bert"\nform = "distilbert"\n', "", 104
    DATA = "[data.masking]\ntoken = 103\nnever = [0]\n[loss]\nignore = 0\n"
    BAR = 1.6
    PUBLISHED = [(f"{VERDE}: training of DistilBERT", "258 to 312 % more time than PyTorch", READ)]

    def network(self):
        from transformers import DistilBertConfig, DistilBertForMaskedLM
        s = self.SIZES
        return DistilBertForMaskedLM(DistilBertConfig(
            vocab_size=s["vocabulary"], max_position_embeddings=self.CONTEXT, n_layers=s["layers"], n_heads=s["heads"], dim=s["width"], hidden_dim=s["hidden"],
            dropout=0.0, attention_dropout=0.0))

    def labels(self, tokens):
        """The tokens to find, and -100 elsewhere; what stands in the inputs in their place costs nothing."""
        import torch
        return torch.where(torch.rand(tokens.shape) < 0.15, tokens, -100)


class Llama(Trained):
    SMALL = {"vocabulary": 300, "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "hidden": 64, "tied": "true"}
    FORM, TABLES, DATA, RESERVED = 'kind = "llama"\n', "", "", 0

    def network(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        s = self.SIZES
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=s["vocabulary"], max_position_embeddings=self.CONTEXT, num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
            num_key_value_heads=s["kv_heads"], hidden_size=s["width"], intermediate_size=s["hidden"], tie_word_embeddings=True, use_cache=False))

    def labels(self, tokens):
        return tokens


class Llama135m(Llama):
    TITLE, SAMPLES, CONTEXT = "A Llama of 135 M parameters, all trained, 1 x 512", 1, 512
    # As SmolLM-135M has them.
    SIZES = {"vocabulary": 49152, "layers": 30, "heads": 9, "kv_heads": 3, "width": 576, "hidden": 1536, "tied": "true"}
    BAR = 1.6
    PUBLISHED = [(f"{VERDE}: large products alone", "less than 30 % more time than cuBLAS", READ)]


# As Llama-3.2-1B has them.
BILLION = {"vocabulary": 128256, "layers": 16, "heads": 32, "kv_heads": 8, "width": 2048, "hidden": 8192, "tied": "true"}


class Llama1bLora(Llama):
    TITLE, SAMPLES, CONTEXT = "A Llama of 1.2 B parameters, adapters of rank 16 trained, 1 x 256", 1, 256
    SIZES, ADAPTERS = BILLION, True
    TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
    TABLES = f"[model.lora]\nrank = 16\nalpha = 16.0\ntargets = {json.dumps(TARGETS)}\n"
    BAR = 1.6
    PUBLISHED = [(f"{VERDE}: fine-tuning adapters of a Llama of 8 B", "126 % more time than PyTorch", READ)]

    def network(self):
        from peft import LoraConfig, get_peft_model
        adapters = LoraConfig(r=16, lora_alpha=16, target_modules=self.TARGETS, task_type="CAUSAL_LM")
        return get_peft_model(super().network(), adapters)


class Llama1bInference(Llama):
    """Answers, by the most likely tokens, to a prompt of random tokens."""

    TITLE, PROMPT, ANSWER, CONTEXT = "Answers of a Llama of 1.2 B parameters", 128, 32, 512
    SIZES = BILLION
    BAR = 1.3
    PUBLISHED = [(f"{VERDE}: inference of a Llama of 1 B", "about 60 % more time than PyTorch at best; 67 to 374 % by another reader", READ)]

    def __init__(self, small=False):
        super().__init__(small)
        if small:
            self.PROMPT, self.ANSWER = 8, 6

    def prompt(self):
        """Tokens; the same ones for every side."""
        import random
        drawn = random.Random(1)
        return [drawn.randrange(self.SIZES["vocabulary"]) for _ in range(self.PROMPT)]

    def release(self, folder):
        """Writes random weights, as transformers does."""
        self.network().save_pretrained(folder, max_shard_size="100GB")

    def peer_answer(self, folder, precision):
        """The second answer of a process by generate() with its cache: seconds of the prompt, seconds of each further token, tokens."""
        import torch
        from transformers import LlamaForCausalLM
        from transformers.generation.streamers import BaseStreamer

        class Clock(BaseStreamer):
            def __init__(self):
                self.times = []

            def put(self, _value):
                self.times.append(time.perf_counter())

            def end(self):
                pass

        model = LlamaForCausalLM.from_pretrained(folder, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision]).eval()
        ids = torch.tensor([self.prompt()])
        for _ in range(2):
            clock = Clock()
            answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.ANSWER, min_new_tokens=self.ANSWER, do_sample=False,
                                    use_cache=True, pad_token_id=0, eos_token_id=[], streamer=clock)
        # The prompt comes first, then each token of the answer.
        return spans(clock.times) | {"tokens": answer[0, len(ids[0]):].tolist(), "parameters": model.num_parameters(), "torch": torch.__version__}

    def answer(self, tiebreak, folder):
        """The answer of `tiebreak generate`, timed by when its tokens are printed: as `peer_answer`, and the most MiB that the process had."""
        ids = " ".join(map(str, self.prompt()))
        command = [tiebreak, "generate", folder, "--job", folder / "job.toml", "--ids", "--prompt", ids, "--length", self.ANSWER, "--temperature", 0, "--quiet"]
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, bufsize=0)
        # A token's time is that of the first byte of its text. The prompt, which is printed once the weights are there, is no longer than one piece.
        text, times = b"", []
        while piece := child.stdout.read(1 << 20):
            text += piece
            if len(text) > len(ids) - 1 and (not times or piece.strip()):
                times.append(time.perf_counter())
        _, status, usage = os.wait4(child.pid, 0)
        if os.waitstatus_to_exitcode(status):
            raise Failed(f"`tiebreak generate` ends with {os.waitstatus_to_exitcode(status)}")
        tokens = [int(word) for word in text.split()][self.PROMPT:]
        if len(times) != len(tokens) + 1:
            raise Failed(f"{len(tokens)} tokens were printed in {len(times)} pieces")
        return spans(times) | {"tokens": tokens, "MiB": usage.ru_maxrss / 1024}


def spans(times):
    """Seconds from the prompt to the first token, and from token to token."""
    return {"prompt seconds": times[1] - times[0], "token seconds": (times[-1] - times[1]) / (len(times) - 2)}


TRAINED = {"distilbert": Distilbert, "llama-135m": Llama135m, "llama-1b-lora": Llama1bLora}
ANSWERING = {"llama-1b-inference": Llama1bInference}
