"""Writes vit_small.json beside it: a small ViTForImageClassification of transformers with random weights, as save_pretrained writes it, with logits and
gradients of some images. Shares no code with us.

    python3 assets/vit_small.py

The gradients are those of the mean cross-entropy, in fp64, by the names of the file's tensors.
"""

import json
import pathlib
import tempfile

import torch
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification, set_seed

set_seed(20261130)
config = ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, image_size=[8, 12], patch_size=4, num_channels=2,
                   num_labels=3, layer_norm_eps=1e-6)
model = ViTForImageClassification(config).eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
prepared = {"do_normalize": True, "do_rescale": True, "image_mean": [0.5, 0.25], "image_processor_type": "ViTImageProcessor", "image_std": [0.5, 0.125],
            "rescale_factor": 0.00392156862745098, "size": {"height": 8, "width": 12}}
images, labels = torch.randint(0, 256, (6, 2, 8, 12)), torch.tensor([0, 2, 1, 1, 0, 2])
constant = lambda key: torch.tensor(prepared[key], dtype=torch.float64).reshape(2, 1, 1)
values = (images.double() / 255 - constant("image_mean")) / constant("image_std")
with torch.no_grad():
    logits = model(values.float()).logits
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    model.save_pretrained(path)
    text, file = (path / "config.json").read_text(), (path / "model.safetensors").read_bytes()
    # In a copy of the model the gradients take the places of the weights, and so their names in files.
    model.double()
    torch.nn.functional.cross_entropy(model(values).logits, labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(path / "gradients")
    gradients = {name: [float(f"{x:.10g}") for x in tensor.flatten().tolist()] for name, tensor in load_file(path / "gradients" / "model.safetensors").items()}
found = {"config": text, "preprocessor": json.dumps(prepared, indent=2) + "\n", "file": file.hex(), "pixels": images.flatten().tolist(),
         "labels": labels.tolist(), "logits": logits.tolist(), "gradients": dict(sorted(gradients.items()))}
lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in found.items())
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + lines + "\n}\n")
