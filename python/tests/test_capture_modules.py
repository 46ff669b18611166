"""Capture of PyTorch's own modules of attention, with and without a mask of padding."""

import json
from pathlib import Path

import numpy as np
import pytest
from captures import OPTIMIZERS, captured_error, data_of_one_sample, is_near_pytorch, mean_loss, needs_torch, nn, torch
from test_capture_encoders import class_loss
from test_capture_padding import LABELS, TEXTS, texts_of

import tiebreak

if torch is not None:

    class Attends(nn.Module):
        """A text's first position after `nn.MultiheadAttention`."""

        def __init__(self, pads, **more):
            super().__init__()
            self.pads, self.more = pads, more
            self.words, self.attention, self.head = nn.Embedding(19, 8, padding_idx=0), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

        def forward(self, ids):
            x = self.words(ids)
            mask = (ids == 0) if self.pads else None
            y, _ = self.attention(x, x, x, key_padding_mask=mask, **{"need_weights": False, **self.more})
            return self.head((x + y)[:, 0])

    class Encodes(nn.Module):
        """A text's first position after `nn.TransformerEncoder`."""

        def __init__(self, pads, dropout=0.0, **more):
            super().__init__()
            self.pads = pads
            self.words, self.head = nn.Embedding(19, 8, padding_idx=0), nn.Linear(8, 3)
            layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True, **more)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids):
            return self.head(self.encoder(self.words(ids), src_key_padding_mask=(ids == 0) if self.pads else None)[:, 0])


MODULES = {
    "attention": (lambda: Attends(False), "sgd", 1),
    "attention, padding": (lambda: Attends(True), "adamw", 1),
    "encoder": (lambda: Encodes(False), "adamw", 2),
    "encoder, padding": (lambda: Encodes(True), "adam", 2),
    "encoder, norms first": (lambda: Encodes(True, norm_first=True, activation="gelu"), "sgd", 2),
}


@needs_torch
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_attention_train_near_pytorch(folder, name):
    torch.manual_seed(1)
    make, optimizer, attentions = MODULES[name]
    model = make()
    due = OPTIMIZERS[optimizer][0](model.parameters())
    ids, labels = torch.from_numpy(TEXTS), torch.from_numpy(LABELS)
    captured = tiebreak.capture(model, class_loss, due, (ids[:2], labels[:2]), out="captured", micro_batches=2, clip_norm=0.5)
    nodes = [node["operator"] for node in json.loads(Path(captured.network).read_text())["nodes"]]
    assert nodes.count("padded_attention" if model.pads else "bidirectional_attention") == attentions, nodes
    run = tiebreak.train(captured.job(texts_of(3), 3), out="run")
    is_near_pytorch(captured, run, model, due, class_loss, (ids, labels), 0.5)


@needs_torch
def test_dropout_of_an_encoder_has_its_probability(folder):
    model, batch = Encodes(True, dropout=0.25), (torch.from_numpy(TEXTS), torch.from_numpy(LABELS))
    captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.1), batch, out="captured")
    found = [(node["operator"], node["attributes"]["p"]) for node in json.loads(Path(captured.network).read_text())["nodes"] if "p" in node.get("attributes", {})]
    assert found == [(kind, 0.25) for kind in ("padded_attention", "dropout", "dropout", "dropout")] * 2
    run = tiebreak.train(captured.job(texts_of(2), 2), out="run")
    assert np.isfinite(run.losses).all() and tiebreak.audit(run, sample=1.0).matches


@needs_torch
def test_other_uses_of_the_modules_are_refused(folder):
    class Exchanged(nn.Module):
        """Rows whose elements are moved, and an operator on these."""

        def __init__(self, compute):
            super().__init__()
            self.words, self.wide, self.head, self.compute = nn.Embedding(7, 6), nn.Linear(6, 18), nn.Linear(6, 3), compute

        def forward(self, ids):
            return self.compute(self, self.words(ids).transpose(0, 1))

    batch = torch.from_numpy(TEXTS), torch.from_numpy(LABELS)
    for model, why in [
        (Attends(True, need_weights=True), "give nn.MultiheadAttention need_weights=False"),
        (Attends(False, is_causal=True, attn_mask=torch.ones(5, 5).triu(1).bool()), None),
    ]:
        if why is not None:
            assert why in "\n".join(captured_error(model, class_loss, batch=batch))
            continue
        captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.1), batch, out="causal")
        assert '"operator": "attention"' in Path(captured.network).read_text()
    batch = torch.zeros(2, 4).long(), torch.zeros(2).long()
    for compute, why in [
        (lambda m, x: m.head(x)[0], "it takes a part of a tensor whose elements were moved"),
        (lambda m, x: m.head(x.reshape(2, 4, 6))[:, 0], "aten.select.int"),
        # As many elements as the queries have, of queries, keys and values.
        (lambda m, x: m.head(m.wide(x).unflatten(-1, (3, 6))[..., :2].reshape(4, 2, 6).transpose(0, 1))[:, 0], "it takes a part of a tensor"),
        (lambda m, x: m.head(x.reshape(4, 3, 4).transpose(1, 2).reshape(8, 6))[:2], "it takes rows whose channels were moved"),
        (lambda m, x: m.head(x.relu().transpose(0, 1))[:, 0], "it takes moved"),
    ]:
        assert why in "\n".join(captured_error(Exchanged(compute), class_loss, batch=batch))


@needs_torch
def test_a_state_has_the_buffers_that_no_run_trains(folder):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.25), nn.Linear(4, 3)
            self.same_norm = self.norm
            self.register_buffer("scale", torch.linspace(1, 2, 4))
            self.register_buffer("unused", torch.tensor([[7, 8]]))
            self.register_buffer("passing", torch.ones(4), persistent=False)
            self.register_buffer("also", self.unused)

        def forward(self, x):
            return self.last(self.norm(self.body(x) * self.scale * self.passing))

    model = Model()
    model.norm.num_batches_tracked += 5
    batch, data = data_of_one_sample((4,), 3)
    optimizer = OPTIMIZERS["sgd"][0](model.parameters())
    captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured")
    model.scale.zero_()
    run = tiebreak.train(captured.job(data, 3), out="run")
    state = captured.state_dict(run)
    assert set(state) == set(model.state_dict()) and "passing" not in state
    assert state["scale"].tolist() == torch.linspace(1, 2, 4).tolist()
    assert state["unused"].tolist() == state["also"].tolist() == [[7, 8]] and state["unused"].dtype == torch.int64
    assert state["norm.num_batches_tracked"] == state["same_norm.num_batches_tracked"] == 8
    assert torch.equal(state["norm.running_mean"], state["same_norm.running_mean"])
    state["scale"].zero_()
    assert captured.state_dict(run)["scale"].tolist() == torch.linspace(1, 2, 4).tolist()
    model.load_state_dict(state, strict=True)
