"""Writes vit_table.json beside it: the names and shapes of the tensors that transformers stores of ViTForImageClassification, of its class's sizes,
with 1,000 labels.

    python3 assets/vit_table.py
"""

import json
import pathlib
import tempfile

import torch
from safetensors import safe_open
from transformers import ViTConfig, ViTForImageClassification

# One block of random numbers, which save_pretrained writes under the names that files have.
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    ViTForImageClassification(ViTConfig(num_labels=1000, num_hidden_layers=1)).save_pretrained(folder)
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        one = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
block = {name: shape for name, shape in one.items() if ".layer.0." in name}
tensors = {name: shape for name, shape in one.items() if name not in block}
for layer in range(12):
    tensors |= {name.replace(".layer.0.", f".layer.{layer}."): shape for name, shape in block.items()}
lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in sorted(tensors.items()))
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + lines + "\n}\n")
