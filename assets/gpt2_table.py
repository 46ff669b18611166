"""Writes gpt2_table.json beside it: the names and shapes of GPT-2's tensors (124M) as transformers stores them (4.57 made the file).

    python3 assets/gpt2_table.py
"""

import json
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

with torch.device("meta"):
    model = GPT2LMHeadModel(GPT2Config())
# save_pretrained leaves out what is tied to another tensor.
tensors = {name: list(t.shape) for name, t in sorted(model.state_dict().items()) if name not in model._tied_weights_keys}
text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in tensors.items())
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + text + "\n}\n")
