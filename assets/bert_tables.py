"""Writes bert_tables.json beside it: the names and shapes of the tensors that transformers stores of BertForMaskedLM, DistilBertForMaskedLM, and of
these with a classifier of three labels, all of the sizes of their classes.

    python3 assets/bert_tables.py
"""

import json
import pathlib

import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
from transformers import DistilBertConfig, DistilBertForMaskedLM, DistilBertForSequenceClassification

tables = []
for name, kind, config in [
    ("bert", BertForMaskedLM, BertConfig()),
    ("distilbert", DistilBertForMaskedLM, DistilBertConfig()),
    ("bert-classes", BertForSequenceClassification, BertConfig(num_labels=3)),
    ("distilbert-classes", DistilBertForSequenceClassification, DistilBertConfig(num_labels=3)),
]:
    with torch.device("meta"):
        model = kind(config)
    # save_pretrained leaves out what is tied to another tensor.
    tensors = {name: list(t.shape) for name, t in sorted(model.state_dict().items()) if name not in (model._tied_weights_keys or ())}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(shape)}" for name, shape in tensors.items())
    tables.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(tables) + "\n}\n")
