#!/usr/bin/env python3
"""Writes models.json: the names and shapes of tensors as transformers stores GPT-2 and torchvision its networks.

Run where torch, torchvision and transformers are installed. The test `released_names_and_shapes_are_the_libraries` compares the layouts with it.
"""

import json
import pathlib

import torch
import torchvision
from transformers import GPT2Config, GPT2LMHeadModel


def shapes(model, left_out=()):
    """Name and shape of each tensor that a file of the model holds."""
    return {name: list(tensor.shape) for name, tensor in sorted(model.state_dict().items()) if name not in left_out}


with torch.device("meta"):
    gpt2 = GPT2LMHeadModel(GPT2Config())
    # save_pretrained leaves out what is tied to another tensor.
    models = {"gpt2": shapes(gpt2, gpt2._tied_weights_keys)}
    for name in ["resnet18", "resnet50", "vgg11", "vgg11_bn"]:
        models[name] = shapes(getattr(torchvision.models, name)())


def one_a_line(tensors):
    """A model's tensors as JSON."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in tensors.items()) + "\n}"


text = ",\n".join(f"{json.dumps(name)}: {one_a_line(tensors)}" for name, tensors in models.items())
pathlib.Path(__file__).with_name("models.json").write_text("{\n" + text + "\n}\n")
