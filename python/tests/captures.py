"""What the tests of capture share: data of one sample, the built-in models' jobs, and the comparison of both with PyTorch."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import command

import tiebreak

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = F = nn = None

REQUIRED = "TIEBREAK_REQUIRE_TORCH" in os.environ
needs_torch = pytest.mark.skipif(
    torch is None and not REQUIRED,
    reason="NOT TESTED: there is no PyTorch, so tiebreak.capture is not (TIEBREAK_REQUIRE_TORCH makes that a failure)",
)


def imported_transformers():
    try:
        import transformers
    except ImportError:
        if REQUIRED:
            raise
        pytest.skip("NOT TESTED: there is no transformers, so none of its models is captured")
    return transformers


def mean_loss(logits, labels):
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def data_of_one_sample(shape, classes):
    """Files with one sample, so that each batch is the same; the sample twice as tensors, and the `[data]` table."""
    draw = np.random.default_rng(3)
    if shape is None:
        tokens = draw.integers(0, 19, 6, dtype=np.uint16)
        np.save("tokens.npy", tokens)
        pair = tokens[:-1], tokens[1:]
        data = {"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}
        return [torch.from_numpy(np.stack([part.astype(np.int64)] * 2)) for part in pair], data
    inputs, labels = draw.standard_normal((1, *shape), dtype=np.float32), draw.integers(0, classes, 1)
    np.save("inputs.npy", inputs)
    np.save("labels.npy", labels)
    data = {"kind": "arrays", "inputs": "inputs.npy", "labels": "labels.npy", "dtype": "f32"}
    return [torch.from_numpy(np.concatenate([part] * 2)) for part in (inputs, labels)], data


OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.1), "adamw", "decoupled"),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.75), eps=1e-3, weight_decay=0.1), "adamw", "coupled"),
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.75, weight_decay=0.1), "sgd", "coupled"),
}


def built_in_job(table, optimizer, clip_norm):
    """The job of the built-in model, without steps, data and weights."""
    _, kind, decay = OPTIMIZERS[optimizer]
    numbers = {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3} if kind == "adamw" else {"momentum": 0.75}
    return {
        "model": table,
        "optimizer": {"kind": kind, "decay": decay, "weight_decay": 0.1, **numbers, "group": [{"parameters": ["*"], "weight_decay": 0.1}]},
        "batch": {"micro_batch": 2, "micro_batches": 2},
        **({"clip_norm": clip_norm} if clip_norm is not None else {}),
    }


def shown(file):
    found = command("program", "show", file)
    return [p["name"] for p in found["parameters"]] + [f"buffer/{b['name']}" for b in found["buffers"]]


def read_safetensors(file):
    data = Path(file).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], np.float32).reshape(t["shape"]) for name, t in header.items()}


def trains_as_the_built_in_one(model, table, shape, optimizer, clip_norm=0.5, in_order=list):
    """Trains a captured model beside the built-in one of a table: the same bits. PyTorch's own steps are near.

    in_order: the captured parameters in the order of the built-in model's.
    """
    from tiebreak._capture import _write_safetensors

    batch, data = data_of_one_sample(shape, table.get("classes"))
    torch_optimizer = OPTIMIZERS[optimizer][0](model.parameters())
    captured = tiebreak.capture(model, mean_loss, torch_optimizer, batch, out="captured", micro_batches=2, clip_norm=clip_norm)
    run = tiebreak.train(captured.job(data, 3), out="captured-run")
    ours = run.state_dict(names="program")

    job = {**built_in_job(table, optimizer, clip_norm), "steps": 3, "data": data, "schedule": {"peak": captured.learning_rate}}
    tiebreak.train({**job, "steps": 1}, out="first")
    names = shown("first/program.bin")
    mapped = dict(zip(in_order(shown(captured.program)), names))
    _write_safetensors("built-in.safetensors", {mapped[name]: array for name, array in read_safetensors(captured.weights).items()})
    theirs = tiebreak.train({**job, "init": {"weights": ["built-in.safetensors"]}}, out="built-in").state_dict(names="program")
    assert len(names) == len(ours) == len(theirs)
    for captured_name, built_in_name in mapped.items():
        assert ours[captured_name].tobytes() == theirs[built_in_name].tobytes(), captured_name

    # The same batches: those of both micro-batches.
    is_near_pytorch(captured, run, model, torch_optimizer, mean_loss, [torch.cat([tensor] * 2) for tensor in batch], clip_norm)
    return captured


def is_near_pytorch(captured, run, model, optimizer, loss_fn, batch, clip_norm):
    """Compares three steps of a run with PyTorch's own on a batch, and audits the run."""
    for _ in range(3):
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    after, due = captured.state_dict(run), model.state_dict()
    assert set(due) == set(after)
    for key, tensor in after.items():
        torch.testing.assert_close(tensor, due[key], rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
    model.load_state_dict(after, strict=True)
    assert tiebreak.audit(run, sample=1.0).matches


def captured_error(model, loss_fn=mean_loss, optimizer=None, batch=None):
    """The refusals of a model over rows of 4, or over a given batch."""
    batch = batch or (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(tiebreak.CaptureError) as error:
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        tiebreak.capture(model, loss_fn, optimizer, batch, out="captured")
    assert not os.path.exists("captured")
    return error.value.refused


def near_fp64(monkeypatch, name, model):
    """Checks the gradients of a model beside PyTorch's in fp64: a function that makes it, and one that makes a batch."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benches")
    gradients = importlib.import_module("captured_gradients")
    monkeypatch.setitem(gradients.MODELS, name, model)
    _, found = gradients.measured(name, count=5)
    assert 2**-28 < np.median(found["PyTorch fp32"][:, 0]) < 2**-18
    assert np.max(gradients.multiples(found, "d = 4")) <= gradients.BAR


def writes_pytorchs_tokens(model, captured):
    """Checks that the run's most likely tokens, computed over caches, are those of a decoder of transformers with the run's state."""
    model = model.eval()
    model.load_state_dict(captured.state_dict(tiebreak.Run("run")))
    text = [3, 5]
    for token in tiebreak.generate("run", text, length=3, temperature=0).tokens:
        with torch.no_grad():
            due = model(torch.tensor([text])).logits[0, -1]
        assert due[token] >= due.max() - 1e-4
        text.append(token)
