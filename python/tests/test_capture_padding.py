"""Capture of texts of different lengths: attention that hides padding, as transformers and torch.nn write it, and data that agree with it."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
from captures import F, OPTIMIZERS, captured_error, is_near_pytorch, needs_torch, nn, read_safetensors, torch
from test_capture_encoders import BERT, DISTIL, class_loss, classifier

import tiebreak

# Texts of different lengths, padded by the id 0, with their labels.
TEXTS = np.array([[3, 1, 18, 7, 3], [5, 2, 0, 0, 0], [11, 4, 6, 0, 0], [9, 0, 0, 0, 0]])
LABELS = np.array([1, 0, 2, 1])


def by_name(ids, padding=0):
    return {"input_ids": ids, "attention_mask": (ids != padding).long()}


def example():
    return by_name(torch.from_numpy(TEXTS[:2])), torch.from_numpy(LABELS[:2])


def texts_of(steps):
    """The `[data]` table of a run whose steps all have the four texts in their order."""
    table = tiebreak.dataset([(ids, int(label)) for ids, label in zip(TEXTS, LABELS)] * steps, "data")
    return {**table, "sampling": "in_order"}


def nodes_of(captured, operator):
    return [node for node in json.loads(Path(captured.network).read_text())["nodes"] if node["operator"] == operator]


class Named(nn.Module if nn else object):
    """A model of transformers that gets the four texts by name."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(**by_name(ids))


MODELS = {
    "bert": ("Bert", BERT, "sdpa", "adamw"),
    "bert, eager": ("Bert", BERT, "eager", "sgd"),
    "distilbert": ("DistilBert", DISTIL, "sdpa", "adam"),
    "distilbert, eager": ("DistilBert", DISTIL, "eager", "adamw"),
}


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_padded_texts_train_near_pytorch(folder, name):
    torch.manual_seed(1)
    kind, sizes, attention, optimizer = MODELS[name]
    model = classifier(kind, sizes, attn_implementation=attention)
    due = OPTIMIZERS[optimizer][0](model.parameters())
    captured = tiebreak.capture(model, class_loss, due, example(), out="captured", micro_batches=2, clip_norm=0.5)
    assert [node["attributes"] for node in nodes_of(captured, "padded_attention")] == [{"heads": 2, "ignore": 0, "p": 0.0}] * 2
    assert nodes_of(captured, "bidirectional_attention") == []
    run = tiebreak.train(captured.job(texts_of(3), 3), out="run")
    batch = torch.from_numpy(TEXTS), torch.from_numpy(LABELS)
    # `is_near_pytorch` calls the model with the inputs alone.
    forward, model.forward = model.forward, lambda ids: forward(**by_name(ids))
    is_near_pytorch(captured, run, model, due, class_loss, batch, 0.5)


@needs_torch
@pytest.mark.parametrize("name", ["bert", "distilbert, eager"])
def test_a_gradient_of_padded_texts_is_near_that_of_binary64(folder, name):
    torch.manual_seed(2)
    kind, sizes, attention, _ = MODELS[name]
    model = classifier(kind, sizes, attn_implementation=attention)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    captured = tiebreak.capture(model, class_loss, optimizer, example(), out="captured", micro_batches=2, digits=4)
    after = captured.state_dict(tiebreak.train(captured.job(texts_of(1), 1), out="run"))
    exact = copy.deepcopy(model).double()
    class_loss(exact(**by_name(torch.from_numpy(TEXTS))), torch.from_numpy(LABELS)).backward()
    gradients = {key: parameter.grad for key, parameter in exact.named_parameters()}
    before = model.state_dict()
    for key, gradient in gradients.items():
        ours = before[key].double() - after[key].double()
        torch.testing.assert_close(ours, gradient, rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
    table = next(key for key in gradients if "word_embeddings" in key)
    assert torch.equal(after[table][0], before[table][0]) and float(gradients[table][3].abs().max()) > 1e-3


@needs_torch
def test_what_stands_at_padding_changes_no_loss(folder):
    from tiebreak._capture import _write_safetensors

    torch.manual_seed(3)
    model = classifier("Bert", BERT)
    losses = {}
    for hides, inputs in [(True, example()[0]), (False, torch.from_numpy(TEXTS[:2]))]:
        captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.1), (inputs, example()[1]), out=f"captured-{hides}", micro_batches=2)
        job, weights = captured.job(texts_of(1), 1), read_safetensors(captured.weights)
        (table,) = (name for name in weights if "word_embeddings" in name)
        for row in (None, 0, 2):
            # A row far from the others moves each scale that has a part in it.
            changed = {name: array.copy() for name, array in weights.items()}
            if row is not None:
                changed[table][row] = np.linspace(-50, 70, 8, dtype=np.float32)
            _write_safetensors("changed.safetensors", changed)
            run = tiebreak.train({**job, "init": {"weights": ["changed.safetensors"]}}, out=f"run-{hides}-{row}")
            losses[hides, row] = np.float32(run.losses[0]).tobytes()
    assert losses[True, 0] == losses[True, None] != losses[True, 2]
    assert losses[False, 0] != losses[False, None]


@needs_torch
def test_twenty_steps_on_padded_texts_are_audited(folder):
    torch.manual_seed(4)
    model = classifier("DistilBert", DISTIL, dropout=0.1, attention_dropout=0.1)
    captured = tiebreak.capture(model, class_loss, torch.optim.AdamW(model.parameters(), lr=0.02), example(), out="captured", micro_batches=2)
    run = tiebreak.train(captured.job(texts_of(20), 20, checkpoint={"every": 5}), out="run")
    assert run.losses[-1] < 0.5 * run.losses[0]
    for device in ("cpu", "reference"):
        assert tiebreak.audit(run, sample=1.0, device=device).matches


@needs_torch
def test_masks_of_both_attentions_and_of_a_model_itself_are_one_program(folder):
    operators = []
    for number, attention in enumerate(("sdpa", "eager", "own")):
        torch.manual_seed(1)
        model = classifier("Bert", BERT, attn_implementation="sdpa" if attention == "own" else attention, attention_probs_dropout_prob=0.1)
        model, inputs = (Named(model), example()[0]["input_ids"]) if attention == "own" else (model, example()[0])
        captured = tiebreak.capture(model, class_loss, torch.optim.AdamW(model.parameters()), (inputs, example()[1]), out=f"captured-{number}")
        operators.append([(node["operator"], node.get("attributes")) for node in json.loads(Path(captured.network).read_text())["nodes"]])
    assert operators[0] == operators[1] == operators[2]
    assert operators[0].count(("padded_attention", {"heads": 2, "ignore": 0, "p": 0.1})) == 2


if torch is not None:

    class Masked(nn.Module):
        """Rows of four positions that attend to others under `mask(tokens)`, by one product of attention or by two."""

        def __init__(self, mask, attend):
            super().__init__()
            self.table, self.qkv, self.head, self.mask, self.attend = nn.Embedding(7, 6), nn.Linear(6, 18), nn.Linear(6, 3), mask, attend

        def forward(self, tokens):
            heads = [part.view(2, 4, 2, 3).transpose(1, 2) for part in self.qkv(self.table(tokens)).split(6, dim=2)]
            return self.head(self.attend(*heads, self.mask(tokens)).transpose(1, 2).reshape(2, 4, 6)[:, 0])


def fused(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def filled(q, k, v, mask):
    return ((q @ k.transpose(2, 3)) * 3**-0.5).masked_fill(mask, float("-inf")).softmax(-1) @ v


def added(q, k, v, mask):
    return ((q @ k.transpose(2, 3)) * 3**-0.5 + mask).softmax(-1) @ v


def columns(tokens):
    return tokens.ne(5)[:, None, None, :]


# The mask of token ids, how it is used, and the id that it hides, or why it is refused.
MASKS = {
    "columns": (columns, fused, 5),
    "columns of each row": (lambda t: columns(t).expand(2, 2, 4, 4), fused, 5),
    "numbers": (lambda t: (1.0 - columns(t).float()) * -1e38, fused, 5),
    "numbers, added": (lambda t: torch.where(columns(t), 0.0, -3.4e38), added, 5),
    "filled": (lambda t: t.eq(5)[:, None, None, :], filled, 5),
    "numbers, filled": (lambda t: torch.zeros(2, 4).masked_fill(t == 0, float("-inf")).view(2, 1, 1, 4), added, 0),
    "two that agree": (lambda t: columns(t) & columns(t), fused, 5),
    "inverted": (lambda t: ~columns(t), fused, "does not hide the positions of padding"),
    "rows": (lambda t: t.ne(5)[:, None, :, None].expand(2, 1, 4, 4), fused, "does not hide the positions of padding"),
    "rows and columns": (lambda t: columns(t) & columns(t).transpose(2, 3), fused, "joins masks that depend on other positions"),
    "shifted": (lambda t: columns(torch.cat([t[:, 1:], t[:, :1]], 1)), fused, "aten.slice.Tensor"),
    "shifted behind": (lambda t: columns(t)[..., [1, 2, 3, 0]], fused, "does not hide the positions of padding"),
    "samples turned": (lambda t: columns(t)[[1, 0]], fused, "does not hide the positions of padding"),
    "earlier": (lambda t: columns(t) & torch.ones(4, 4).tril().bool(), fused, "does not hide the positions of padding"),
    "a bias": (lambda t: torch.where(columns(t), 0.0, -0.5), added, "does not hide the positions of padding"),
    "above": (lambda t: (t > 5)[:, None, None, :], fused, "aten.gt.Scalar"),
    "two ids": (lambda t: columns(t) & t.ne(0)[:, None, None, :], fused, "it joins masks of the ids 5 and others"),
    "a weight": (columns, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v * mask.transpose(2, 3)), "aten.mul.Tensor .*it multiplies \\[2, 2, 4, 3\\] \\(heads\\) and \\[2, 1, 4, 1\\] \\(mask\\)"),
}


@needs_torch
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_padding_is_one_operator_or_refused(folder, name):
    mask, attend, due = MASKS[name]
    model, batch = Masked(mask, attend), (torch.zeros(2, 4).long(), torch.zeros(2).long())
    if isinstance(due, int):
        captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), batch, out="captured")
        (node,) = nodes_of(captured, "padded_attention")
        assert node["attributes"] == {"heads": 2, "ignore": due, "p": 0.0} and node["inputs"][3] == "inputs"
        return
    said = "\n".join(captured_error(model, class_loss, batch=batch))
    assert re.search(due, said) and "test_capture_padding.py:" in said, said


@needs_torch
def test_two_attentions_hide_one_id(folder):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Masked(columns, fused), Masked(lambda t: t.ne(0)[:, None, None, :], fused)

        def forward(self, tokens):
            return self.first(tokens) + self.second(tokens)

    batch = torch.zeros(2, 4).long(), torch.zeros(2).long()
    assert "it hides the id 0, and another attention 5" in "\n".join(captured_error(Twice(), class_loss, batch=batch))


@needs_torch
def test_masks_that_do_not_follow_from_the_ids_are_refused(folder):
    model = classifier("Bert", BERT)
    (inputs, labels) = example()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    several, some, other = mask.clone(), mask.clone(), mask.clone()
    several[0, 4], some[1, 4], other[0, 0] = 0, 1, 2
    for wrong, why in [
        (several, "hides several token ids, \\[0, 3\\]"),
        (some, "hides the token id 0 at some positions and not at others"),
        (other, "holds other numbers than 0 and 1"),
    ]:
        said = "\n".join(captured_error(model, class_loss, batch=({"input_ids": ids, "attention_mask": wrong}, labels)))
        assert re.search(f"attention_mask of the example batch {why}: give 0 at each position of padding", said), said


@needs_torch
def test_data_agree_with_what_is_hidden(folder):
    model, labels = classifier("Bert", BERT), example()[1]
    ones = torch.full((2, 5), 3)
    hides = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), example(), out="hides")
    full = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), (by_name(ones), labels), out="full")
    without = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.5), (ones, labels), out="without")
    padded = texts_of(1)
    empty = tiebreak.dataset([(np.array(row), 1) for row in ([3, 1, 1, 1, 1], [0, 0, 0, 0, 0])], "empty")
    rows = np.array([[3, 1, 1, 1, 1], [0, 0, 0, 0, 0]], np.uint16)
    header = json.dumps({"x": {"dtype": "U16", "shape": [2, 5], "data_offsets": [4, 24]}}).encode()
    Path("empty.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes([1, 0] * 2) + rows.tobytes())
    packed = {"kind": "arrays", "dtype": "u16", "inputs": "empty.safetensors", "inputs_tensor": "x", "labels": padded["labels"]}
    for captured, data, why in [
        (hides, empty, "sample 1 of .*inputs.npy is padding alone, the token id 0"),
        (hides, packed, "sample 1 of empty.safetensors is padding alone"),
        (full, padded, "sample 1 of .*inputs.npy has the token id of padding, 0, and the program hides none"),
    ]:
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job(data, 1)
    assert hides.job(padded, 1) and without.job(padded, 1)


@needs_torch
def test_a_loop_gives_padded_texts_by_name(folder):
    torch.manual_seed(5)
    model = classifier("Bert", BERT)
    ids, labels = torch.from_numpy(TEXTS), torch.from_numpy(LABELS)
    captured = tiebreak.capture(model, class_loss, torch.optim.SGD(model.parameters(), lr=0.1), example(), out="captured", micro_batches=2)
    changed, alone, short = by_name(ids), ids.clone(), by_name(ids)
    changed["attention_mask"][1, 2], alone[3, 0], short["attention_mask"] = 1, 0, short["attention_mask"][:2]
    with tiebreak.Recorder(captured, out="run", steps=2) as run:
        for inputs, why in [
            (changed, "attention_mask is 1 at \\[1, 2\\], where the token id is 0"),
            ({**by_name(ids), "token_type_ids": ids}, "token_type_ids is 3 at \\[0, 0\\]"),
            ({**by_name(ids), "position_ids": ids}, "the inputs have 'position_ids'"),
            (short, "attention_mask have 2 samples, and a step takes 4"),
            (alone, "text 3 is padding alone, the token id 0"),
            ({"attention_mask": ids}, "the inputs are a dict"),
        ]:
            with pytest.raises(tiebreak.BatchError, match=why):
                run.step((inputs, labels))
        losses = [run.step((inputs, labels)) for inputs in (by_name(ids), ids)]
    trained = tiebreak.train(captured.job(texts_of(2), 2), out="trained")
    assert losses == trained.losses.tolist() and tiebreak.audit(run.run, sample=1.0).matches
