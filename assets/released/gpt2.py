#!/usr/bin/env python3
"""Writes gpt2.json: the names and shapes of GPT-2's tensors as transformers stores them. Run where torch and transformers are installed."""

import json
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

with torch.device("meta"):
    model = GPT2LMHeadModel(GPT2Config())
state = model.state_dict()
# save_pretrained leaves out what is tied to another tensor.
for tied in model._tied_weights_keys:
    del state[tied]
shapes = {name: list(tensor.shape) for name, tensor in sorted(state.items())}
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in shapes.items())
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + lines + "\n}\n")
