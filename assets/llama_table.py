"""Writes llama_table.json beside it: the names and shapes of a Llama's tensors (the sizes of SmolLM 135M, not tied) as transformers stores
them.

    python3 assets/llama_table.py
"""

import json
import pathlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
with torch.device("meta"):
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
tensors = {name: list(t.shape) for name, t in sorted(model.state_dict().items())}
text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in tensors.items())
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + text + "\n}\n")
