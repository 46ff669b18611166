"""Gradients of captured models beside PyTorch's in fp64, by the comparison of `benches/captured_gradients.py`."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from captures import imported_transformers, needs_torch

MODELS = ["LlamaForCausalLM", "BertForMaskedLM", "ViTForImageClassification", "RegNetForImageClassification, y"]


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_as_near_to_fp64_as_pytorchs_in_fp32(name, monkeypatch):
    imported_transformers()
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benches")
    gradients = importlib.import_module("captured_gradients")
    _, rows = gradients.measured(name, count=3)
    # The yardstick is that of fp32: rounded, and a few units of the last place from fp64.
    assert 2**-26 < np.median(rows["PyTorch fp32"][:, 0]) < 2**-18
    assert np.max(gradients.multiples(rows, "d = 4")) <= gradients.BAR
    # With three digits the error is larger, so the comparison sees the digits.
    assert gradients.multiples(rows, "d = 3")[0] > gradients.multiples(rows, "d = 4")[0] * 1.5
