"""A captured PyTorch model in a loop of one's own: tensors of every kind, and the same run as by `train`."""

import itertools
import warnings

import numpy as np
import pytest
from captures import mean_loss, needs_torch, nn, torch
from test_capture import decoder
from test_recorder import same_run

import tiebreak


def rows(**more):
    """A captured perceptron, two micro-batches a step."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batch = torch.zeros(3, 4), torch.zeros(3).long()
    return tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", micro_batches=2, **more)


@needs_torch
def test_a_loader_trains_a_captured_model_as_training_on_its_data_does(folder):
    captured = rows()
    pictures = torch.utils.data.TensorDataset(torch.randn(30, 4), torch.arange(30) % 3)
    loader = torch.utils.data.DataLoader(pictures, batch_size=6, shuffle=True, drop_last=True)
    assert captured.inputs["name"] == "values"
    losses = []
    with tiebreak.Recorder(captured, out="run", steps=5, key="me.key", checkpoint={"every": 2}) as run:
        for inputs, labels in loader:
            losses.append(run.step((inputs.requires_grad_(), labels)))
    trained = same_run("run")
    assert losses == [float(loss) for loss in trained.losses]
    after, theirs = captured.state_dict(run.run), captured.state_dict(trained)
    assert all(torch.equal(after[name], theirs[name]) for name in after)
    report = tiebreak.audit(run.run, sample=1.0)
    assert report.matches and sum("the trainer chose them" in line for line in report.not_checked) == 1


@needs_torch
def test_token_ids_of_a_decoder_are_recorded(folder):
    text = decoder()
    batch = torch.zeros(2, 5).long(), torch.zeros(2, 5).long()
    captured = tiebreak.capture(text, mean_loss, torch.optim.SGD(text.parameters(), lr=0.5), batch, out="captured")
    with tiebreak.Recorder(captured, out="run", steps=3, key="me.key") as run:
        for ids in torch.randint(0, captured.inputs["below"], (3, 2, 6), generator=torch.Generator().manual_seed(1)):
            run.step((ids[:, :-1], ids[:, 1:]))
        assert run.is_complete
    same_run("run", ["tokens.npy"])


@needs_torch
def test_odd_tensors_raise_and_others_are_the_same_batch(folder):
    captured = rows()
    inputs, labels = torch.arange(24.0).reshape(6, 4) / 8, torch.arange(6) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of beta features of sparse tensors
        sparse = inputs.to_sparse_csr()
    odd = [
        (torch.zeros(6, 4, device="meta"), "hold no plain numbers"),
        (sparse, "hold no plain numbers"),
        (inputs.bfloat16(), "the inputs are bf16"),
        (inputs.half(), "the inputs are float16"),
        (inputs.double(), "the inputs are float64"),
        (inputs.to(torch.complex64), "the inputs are complex64"),
        (torch.full((6, 4), float("nan")), "the inputs hold nan at"),
        (inputs[:3], "the inputs have 3 samples, and a step takes 6"),
    ]  # fmt: skip
    with tiebreak.Recorder(captured, out="run", steps=3) as run:
        for tensor, why in odd:
            with pytest.raises(tiebreak.BatchError, match=why) as error:
                run.step((tensor, labels))
            assert error.value.help and run.done == 0
        losses = [
            run.step((inputs.t().contiguous().t(), labels.to(torch.uint8))),
            run.step((torch.nn.Parameter(inputs), labels.int())),
            run.step((inputs.numpy(), labels.tolist())),
        ]
    with tiebreak.Recorder(captured, out="plain", steps=3) as plain:
        assert losses == [plain.step((inputs, labels)) for _ in range(3)]
    assert tiebreak.compare("run", "plain").same


@needs_torch
def test_what_was_captured_needs_steps_and_no_data(folder):
    captured = rows()
    for more, why in [({}, "steps is missing"), ({"steps": 2, "data": {}}, "data are given beside"), ({"steps": 2, "schedule": {}}, "schedule.peak")]:
        with pytest.raises(tiebreak.UsageError, match=why):
            with tiebreak.Recorder(captured, out="run", **more):
                pass


@needs_torch
def test_a_recording_of_a_captured_model_goes_on(folder):
    captured = rows()
    batches = [(torch.full((6, 4), float(step)), torch.arange(6) % 3) for step in range(4)]
    for last in (2, 4):
        run = tiebreak.Recorder(captured, out="run", steps=4, key="me.key")
        try:
            with run:
                for batch in itertools.islice(batches, run.done, last):
                    run.step(batch)
        except tiebreak.UndecidedError as error:
            assert last == 2 and "has 2 of 4 steps" in str(error)
    assert run.is_complete and np.isfinite(run.run.losses).all()
    same_run("run")
