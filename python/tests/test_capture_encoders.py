"""Capture of encoders: transformers' ViT, BERT and DistilBERT as classifiers, attention over all positions, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from captures import F, OPTIMIZERS, captured_error, imported_transformers, is_near_pytorch, needs_torch, nn, torch

import tiebreak

VIT = {"image_size": 8, "patch_size": 4, "num_channels": 2, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
       "intermediate_size": 12, "num_labels": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
BERT = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
        "max_position_embeddings": 9, "num_labels": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
DISTIL = {"vocab_size": 19, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 5, "num_labels": 3,
          "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}  # fmt: skip


def classifier(kind, sizes, **more):
    """A classifier of transformers with random numbers in each parameter."""
    transformers = imported_transformers()
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **more})
    model = getattr(transformers, f"{kind}For{'Image' if kind == 'ViT' else 'Sequence'}Classification")(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def class_loss(out, labels):
    return F.cross_entropy(getattr(out, "logits", out), labels)


def one_image():
    draw = np.random.default_rng(3)
    np.save("inputs.npy", draw.standard_normal((1, 2, 8, 8), dtype=np.float32))
    np.save("labels.npy", np.array([2]))
    return {"kind": "arrays", "inputs": "inputs.npy", "labels": "labels.npy", "dtype": "f32"}


def one_text():
    """A text with the token of padding, whose row of the table has no gradient."""
    return tiebreak.dataset([(np.array([3, 0, 18, 7, 3]), 1)], "data")


# A model and its data. All have a batch of one sample twice.
ENCODERS = {
    "vit": (lambda: classifier("ViT", VIT), one_image, "adamw"),
    "vit, eager": (lambda: classifier("ViT", VIT, attn_implementation="eager", qkv_bias=False), one_image, "sgd"),
    "bert": (lambda: classifier("Bert", BERT), one_text, "adamw"),
    "bert, eager": (lambda: classifier("Bert", BERT, attn_implementation="eager"), one_text, "sgd"),
    "distilbert": (lambda: classifier("DistilBert", DISTIL), one_text, "adam"),
    "distilbert, eager": (lambda: classifier("DistilBert", DISTIL, attn_implementation="eager"), one_text, "adamw"),
}


def batch_of(data, samples=2):
    inputs, labels = (torch.from_numpy(np.load(data[key])) for key in ("inputs", "labels"))
    inputs = inputs if inputs.is_floating_point() else inputs.long()
    return torch.cat([inputs] * samples), torch.cat([labels.long()] * samples)


@needs_torch
@pytest.mark.parametrize("name", ENCODERS)
def test_a_captured_encoder_trains_near_pytorch(folder, name):
    torch.manual_seed(1)
    make, written, optimizer = ENCODERS[name]
    model, data = make(), written()
    due = OPTIMIZERS[optimizer][0](model.parameters())
    captured = tiebreak.capture(model, class_loss, due, batch_of(data), out="captured", micro_batches=2, clip_norm=0.5)
    run = tiebreak.train(captured.job(data, 3), out="run")
    is_near_pytorch(captured, run, model, due, class_loss, batch_of(data, 4), 0.5)
    nodes = [node["operator"] for node in json.loads(Path(captured.network).read_text())["nodes"]]
    assert nodes.count("bidirectional_attention") == 2 and nodes.count("first_position") == 1 and "attention" not in nodes, nodes
    assert nodes.count("class_token") == ("vit" in name) and nodes.count("tanh") == nodes.count("first_row") == (name[:4] == "bert")


@needs_torch
def test_both_attentions_and_inputs_by_name_are_one_program(folder):
    ids = torch.tensor([[3, 1, 18, 7, 3]] * 2)
    ones, zeros = torch.ones_like(ids), torch.zeros_like(ids)
    programs = []
    for number, (attention, inputs) in enumerate([
        ("sdpa", ids), ("eager", ids), ("sdpa", {"input_ids": ids, "attention_mask": ones, "token_type_ids": zeros}),
        ("eager", {"input_ids": ids, "attention_mask": ones}),
    ]):  # fmt: skip
        torch.manual_seed(1)
        model = classifier("Bert", BERT, attn_implementation=attention, attention_probs_dropout_prob=0.1)
        optimizer = torch.optim.AdamW(model.parameters())
        captured = tiebreak.capture(model, class_loss, optimizer, (inputs, torch.tensor([1, 2])), out=f"captured-{number}")
        programs.append([Path(captured.network).read_text(), Path(captured.program).read_bytes(), Path(captured.weights).read_bytes()])
        attributes = [node["attributes"] for node in json.loads(programs[-1][0])["nodes"] if node["operator"] == "bidirectional_attention"]
        assert attributes == [{"heads": 2, "p": 0.1}] * 2
    operators = [[(node["operator"], node.get("attributes")) for node in json.loads(text)["nodes"]] for text, _, _ in programs]
    assert operators[0] == operators[1] == operators[2] == operators[3]
    assert programs[0][2] == programs[3][2] and programs[0] == programs[2] and programs[1] == programs[3]


if torch is not None:

    class Attending(nn.Module):
        """Rows of four positions that attend as `weights` says."""

        def __init__(self, attend):
            super().__init__()
            self.table, self.qkv, self.head, self.attend = nn.Embedding(7, 6), nn.Linear(6, 18), nn.Linear(6, 7), attend

        def forward(self, tokens):
            x = self.table(tokens)
            heads = [part.view(2, 4, 2, 3).transpose(1, 2) for part in self.qkv(x).split(6, dim=2)]
            return self.head(self.attend(*heads).transpose(1, 2).reshape(2, 4, 6))


SCALE = 3**-0.5


def additive(visible, hidden=float("-inf")):
    return torch.zeros(4, 4).masked_fill(~visible, hidden)


def earlier():
    return torch.ones(4, 4).tril().bool()


def by_products(q, k, v, scale=SCALE, mask=None, dim=-1):
    scores = (q @ k.transpose(-2, -1)) * scale
    return (scores if mask is None else scores + mask).softmax(dim) @ v


# Attention as a model computes it of q, k and v: the operator, or why it is refused.
ATTENTIONS = {
    "all": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "bidirectional_attention"),
    "all, by a mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(4, 4).bool()), "bidirectional_attention"),
    "all, by numbers": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(2, 1, 4, 4)), "bidirectional_attention"),
    "earlier, by numbers": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=additive(earlier())), "attention"),
    "two products": (by_products, "bidirectional_attention"),
    "two products, divided": (lambda q, k, v: ((q @ k.transpose(2, 3)) / 3**0.5).softmax(-1) @ v, "bidirectional_attention"),
    "two products, earlier": (lambda q, k, v: by_products(q, k, v, mask=additive(earlier(), -3.4e38)), "attention"),
    "two products, filled": (
        lambda q, k, v: ((q @ k.transpose(2, 3)) * SCALE).masked_fill(~earlier(), float("-inf")).softmax(-1) @ v, "attention",
    ),
    "dropped": (lambda q, k, v: F.dropout(((q @ k.transpose(2, 3)) * SCALE).softmax(-1), 0.5) @ v, "bidirectional_attention"),
    "padding": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor([True, True, True, False]).expand(4, 4)),
        "biased_attention",
    ),
    "a window": (lambda q, k, v: by_products(q, k, v, mask=additive(earlier() & earlier().T)), "window_attention"),
    "a bias": (lambda q, k, v: by_products(q, k, v, mask=torch.full((4, 4), -0.5)), "biased_attention"),
    "another scale": (lambda q, k, v: by_products(q, k, v, scale=0.5), "bidirectional_attention"),
    "no scale": (lambda q, k, v: (q @ k.transpose(2, 3)).softmax(-1) @ v, "bidirectional_attention"),
    "a scale without an end": (lambda q, k, v: by_products(q, k, v, scale=float("inf")), "scale is inf; leave scale out, or give a finite number"),
    "no softmax": (lambda q, k, v: ((q @ k.transpose(2, 3)) * SCALE) @ v, "aten.matmul.default .*it is no product of attention"),
    "along queries": (lambda q, k, v: by_products(q, k, v, dim=-2), "aten.softmax.int .*it is no softmax of the scores"),
    "dropped before": (lambda q, k, v: F.dropout((q @ k.transpose(2, 3)) * SCALE, 0.5).softmax(-1) @ v, "before their softmax"),
    "scaled behind": (lambda q, k, v: ((q @ k.transpose(2, 3)).softmax(-1) * SCALE) @ v, "multiplied by something else"),
    "turned": (lambda q, k, v: (q.transpose(2, 3) @ k @ v.transpose(2, 3)).transpose(2, 3), "aten.matmul.default .*it is no product of attention"),
}


@needs_torch
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_one_operator_or_refused(folder, name):
    attend, due = ATTENTIONS[name]
    model, batch = Attending(attend), (torch.zeros(2, 4).long(),) * 2

    def loss(logits, labels):
        return F.cross_entropy(logits.reshape(-1, 7), labels.reshape(-1))

    if due in ("attention", "bidirectional_attention", "window_attention", "biased_attention"):
        captured = tiebreak.capture(model, loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured")
        nodes = json.loads(Path(captured.network).read_text())["nodes"]
        scaled = ["gain"] if "scale" in name else []
        assert [node["operator"] for node in nodes] == ["embedding", *["linear"] * 3, *scaled, due, "linear"], nodes
        window = {"window": 1} if due == "window_attention" else {}
        assert nodes[4 + len(scaled)]["attributes"] == {"heads": 2, **window, "p": 0.5 if name == "dropped" else 0.0}
        return
    said = "\n".join(captured_error(model, loss, batch=batch))
    assert re.search(due, said) and "test_capture_encoders.py:" in said, said


@needs_torch
def test_rows_of_samples_are_checked(folder):
    class Rows(nn.Module):
        def __init__(self, compute):
            super().__init__()
            self.table, self.other, self.head, self.compute = nn.Embedding(7, 6), nn.Embedding(3, 6), nn.Linear(6, 7), compute
            self.token, self.rows = nn.Parameter(torch.ones(1, 1, 6)), nn.Parameter(torch.ones(1, 4, 6))

        def forward(self, tokens):
            return self.head(self.compute(self, self.table(tokens), tokens))

    batch = torch.zeros(2, 4).long(), torch.zeros(2).long()
    for compute, why in [
        (lambda m, x, t: x[0][:2], "take positions or channels of each sample"),
        (lambda m, x, t: torch.cat([m.token.expand(2, -1, -1) + 1, x], 1)[:, 0], "it joins tensors|it adds .*compute with tensors of one shape"),
        (lambda m, x, t: (x + m.other(torch.ones(2, 4).long()))[:, 0], "the constant numbers are \\[1, 1"),
        (lambda m, x, t: (x + m.other(torch.arange(4)))[:, 0], "the table has 3 positions, and a sample 4"),
        (lambda m, x, t: (x + m.other((t > 0).long()))[:, 0], "aten.gt.Scalar"),
    ]:
        said = "\n".join(captured_error(Rows(compute), class_loss, batch=batch))
        assert re.search(why, said), said

    model = Rows(lambda m, x, t: torch.cat([m.token.expand(2, -1, -1), x + m.rows], 1)[:, 0])
    del model.other
    captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured")
    network = json.loads(Path(captured.network).read_text())
    assert {p["name"]: p["shape"] for p in network["parameters"]} == {"table.weight": [7, 6], "rows": [4, 6], "token": [6], "head.weight": [7, 6], "head.bias": [7]}
    assert network["inputs"] == {"name": "ids", "shape": [2, 4], "below": 7}


@needs_torch
def test_inputs_by_name_are_one_input_and_constants(folder):
    model = classifier("Bert", BERT)
    ids, labels = torch.zeros(2, 5).long(), torch.zeros(2).long()
    padded, segments = torch.ones(2, 5).long(), torch.zeros(2, 5).long()
    padded[1, 4], segments[0, 3] = 0, 1
    for inputs, why in [
        ({"input_ids": ids, "attention_mask": padded}, "attention_mask of the example batch hides the token id 0 at some positions and not at others: give 0"),
        ({"input_ids": ids, "token_type_ids": segments}, "token_type_ids of the example batch is not 0 everywhere"),
        ({"input_ids": ids, "position_ids": ids}, "the inputs have 'position_ids'"),
    ]:
        assert why in "\n".join(captured_error(model, class_loss, batch=(inputs, labels)))
    for inputs, why in [({"attention_mask": padded}, "give one of input_ids and pixel_values"), ({"input_ids": ids, "attention_mask": ids[:1]}, "has not the shape")]:
        with pytest.raises(tiebreak.UsageError, match=why):
            tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), (inputs, labels), out="captured")


@needs_torch
def test_texts_with_a_label_are_arrays_of_ids(folder):
    model = classifier("DistilBert", DISTIL)
    batch = torch.zeros(2, 5).long(), torch.zeros(2).long()
    captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured")
    # One sample, so that each batch is the same: a seed depends on the bytes of the files.
    texts = tiebreak.dataset([(np.arange(5), 1)], "texts")
    assert texts["dtype"] == "u32" and captured.job(texts, 1)["data"] == texts
    np.save("narrow.npy", np.load(texts["inputs"]).astype(np.uint16))
    narrow = {**texts, "inputs": "narrow.npy", "dtype": "u16"}
    losses = [tiebreak.train(captured.job(data, 2), out=f"run-{data['dtype']}").losses.tolist() for data in (narrow, texts)]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    for data, why in [
        (tiebreak.dataset([[1, 2, 3, 4, 5, 6]], "windows"), "the data are tokens, and the example batch has token ids with one label"),
        (tiebreak.dataset([(np.zeros(5, np.float32), 1)], "floats"), "the data are arrays of 'f32'"),
        (tiebreak.dataset([(np.arange(4), 1)], "short"), "has the shape \\[4\\], and one of the example batch \\[5\\]"),
    ]:
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job(data, 1)
