"""Evaluations and predictions in Python are those of the command, to the bit."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import command, gpt, residual

import tiebreak

NETWORK = {
    "format": "tiebreak network 1",
    "micro_batch": 2,
    "inputs": {"name": "values", "shape": [2, 7]},
    "labels": {"shape": [2], "below": 3},
    "parameters": [
        {"name": "first", "shape": [5, 7], "init": {"normal": 0.5}},
        {"name": "gain", "shape": [5], "init": "ones"},
        {"name": "last", "shape": [3, 5], "init": {"normal": 0.5}},
    ],
    "nodes": [
        {"name": "hidden", "operator": "matmul", "inputs": ["inputs", "first"]},
        {"name": "gate", "operator": "sigmoid", "inputs": ["hidden"]},
        {"name": "gated", "operator": "mul", "inputs": ["hidden", "gate"]},
        {"name": "scaled", "operator": "gain", "inputs": ["gated", "gain"]},
        {"name": "drop", "operator": "dropout", "inputs": ["scaled"], "attributes": {"p": 0.5}},
        {"name": "logits", "operator": "matmul", "inputs": ["drop", "last"]},
    ],
    "optimizer": {"kind": "sgd", "momentum": 0.5},
}
# Values of the command's result that differ by nature.
VOLATILE = ("next",)


def without(result):
    return {key: value for key, value in result.items() if key not in VOLATILE}


@pytest.fixture
def captured(folder):
    """A run of a network file, its data, and inputs that it has not seen."""
    draw = np.random.default_rng(5)
    data = tiebreak.dataset((draw.standard_normal((11, 7), dtype=np.float32), np.arange(11) % 3), "data")
    Path("network.json").write_text(json.dumps(NETWORK))
    command("program", "compile", "network.json", "--out", "program.bin")
    run = tiebreak.train({"steps": 3, "program": "program.bin", "schedule": {"peak": 0.1}, "data": data}, out="run")
    return run, data, draw.standard_normal((5, 7), dtype=np.float32)


def test_an_evaluation_of_a_network_file_is_the_commands(captured):
    run, data, _ = captured
    mine = tiebreak.evaluate(run, data, network="network.json", report="mine.json")
    files = ["--data", data["inputs"], "--data", data["labels"]]
    theirs = command("eval", "run", "--network", "network.json", *files, "--report", "theirs.json")
    assert without(mine.to_dict()) == without(theirs)
    assert Path("mine.json").read_bytes() == Path("theirs.json").read_bytes()
    assert (mine.samples, mine.labels, mine.matches, mine.differs) == (11, 11, None, [])
    found = theirs["found"]
    assert (np.float32(mine.loss), np.float32(mine.accuracy), mine.perplexity) == (np.float32(found["loss"]), np.float32(found["accuracy"]), found["perplexity"])
    assert f"{np.float32(mine.loss).view(np.uint32):08x}" == theirs["loss"] and f"{mine.hits} of 11" in str(mine) and mine.losses == theirs["losses"]
    # Every engine, every batch, and the paths alone: the same bits.
    for more in ({"device": "reference"}, {"batch": 4}, {"threads": 1}):
        again = tiebreak.evaluate("run", [data["inputs"], Path(data["labels"])], network=Path("network.json"), expect="theirs.json", **more)
        assert again.matches and again.losses == mine.losses
    other = tiebreak.evaluate(run, data, network="network.json", step=0, expect="theirs.json")
    assert other.matches is False and "parameters" in other.differs and "differs in" in str(other)
    assert tiebreak.evaluate(run, data, network="network.json", samples=4).samples == 4


def test_a_run_keeps_its_network_and_evaluates_while_it_trains(captured):
    plain, data, inputs = captured
    job = {"steps": 3, "program": "program.bin", "network": "network.json", "schedule": {"peak": 0.1}, "data": data}
    run = tiebreak.train({**job, "checkpoint": {"every": 1}, "evaluation": {"every": 2, "samples": 7}}, out="kept")
    lines = [line for line in run.metrics if "evaluation_loss" in line]
    assert [line["step"] for line in lines] == [2, 3]
    for line in lines:
        found = tiebreak.evaluate(run, samples=7, step=line["step"])
        assert np.float32(line["evaluation_loss"]) == np.float32(found.loss) and line["evaluation_accuracy"] == found.accuracy
    assert Path("kept/network.json").read_bytes() == Path("network.json").read_bytes()
    assert run.losses.tolist() == plain.losses.tolist()
    assert tiebreak.predict(run, inputs).logits.tobytes() == tiebreak.predict(run, inputs, network="network.json").logits.tobytes()
    # So does a recording, which makes no evaluations.
    fed = {**job, "data": {"kind": "arrays", "dtype": "f32"}}
    with tiebreak.Recorder(fed, out="recorded", steps=2) as recorder:
        for number in range(2):
            recorder.step((inputs[number : number + 2], np.array([0, 1])))
    assert tiebreak.evaluate("recorded", data).losses == tiebreak.evaluate("recorded", data, network="network.json").losses
    with pytest.raises(tiebreak.UsageError, match="--network FILE"):
        tiebreak.evaluate(plain)
    with pytest.raises(tiebreak.UsageError, match="name the network file"):
        tiebreak.train({**{key: job[key] for key in job if key != "network"}, "evaluation": {"every": 2}}, out="refused")


def test_predictions_of_a_network_file_are_the_commands(captured):
    run, data, inputs = captured
    mine = tiebreak.predict(run, inputs, network="network.json")
    np.save("inputs.npy", inputs)
    theirs = command("predict", "run", "--network", "network.json", "--inputs", "inputs.npy", "--logits", "theirs.npy")
    assert without(mine.to_dict()) == without(theirs)
    assert mine.logits.dtype == np.float32 and mine.logits.tobytes() == np.load("theirs.npy").tobytes()
    assert mine.classes.tolist() == mine.logits.argmax(1).tolist() and mine.classes.dtype == np.int64
    assert (len(mine), mine.samples, mine.logits.shape) == (5, [0, 1, 2, 3, 4], (5, 3)) and "5 samples of 3 classes" in repr(mine)
    # A sample's logits are its own, wherever it comes from.
    for again in (
        tiebreak.predict(run, inputs[::-1], network="network.json", batch=3).logits[::-1],
        tiebreak.predict("run", "inputs.npy", network="network.json", device="reference").logits,
        np.concatenate([tiebreak.predict(run, inputs, network="network.json", samples=pair).logits for pair in [(0, 2), (2, 5)]]),
    ):
        assert again.tobytes() == mine.logits.tobytes()
    # The inputs of data, without which they are those of the training.
    of_data = tiebreak.predict(run, data=data, network="network.json", samples=range(3, 5))
    assert of_data.samples == [3, 4] and of_data.logits.tobytes() == tiebreak.predict(run, network="network.json").logits[3:5].tobytes()


def test_receipts_from_python_are_checked_by_the_command(captured):
    run, _, inputs = captured
    np.save("inputs.npy", inputs)
    tiebreak.predict(run, inputs, network="network.json", receipt="receipt.json", trace="receipt.trace", key="me.key")
    given = ["--network", "network.json", "--inputs", "inputs.npy"]
    checked = command("receipt", "check", "receipt.json", "run", *given, "--trace", "receipt.trace", "--signer-key", "me.key.pub")
    assert checked["result"] == "matches", checked
    np.save("inputs.npy", inputs + 1)
    assert command("receipt", "check", "receipt.json", "run", *given, "--signer-key", "me.key.pub", exit_code=1)


def test_built_in_models_and_released_weights(folder):
    run = tiebreak.train(gpt(), out="run")
    mine = tiebreak.evaluate(run, "text.txt", batch=3)
    assert without(mine.to_dict()) == without(command("eval", "run", "--data", "text.txt"))
    tokens = np.frombuffer(b"to be or not", dtype=np.uint8).reshape(1, 12)
    texts = tiebreak.predict(run, tokens.astype(np.int64))
    assert texts.logits.shape == (1, 12, 128) and texts.classes.shape == (1, 12)
    assert texts.classes.tolist() == texts.logits.argmax(-1).tolist()
    command("export", "run", "--output", "export", "--format", "safetensors")
    for job in (gpt(), "job.toml"):
        if job == "job.toml":
            Path(job).write_text(run.job)
        released = tiebreak.evaluate("export/model.safetensors", "text.txt", job=job)
        assert released.losses == mine.losses and released.loss == mine.loss
    assert not [name for name in os.listdir() if name.startswith(".tiebreak")]
    seen = tiebreak.train(residual(), out="images")
    assert tiebreak.evaluate(seen).samples == 8 and tiebreak.predict(seen).logits.shape == (8, 10)


def test_a_model_that_is_not_finite_predicts_nothing(captured):
    run, data, inputs = captured
    inputs[2, 3] = np.nan
    mine = tiebreak.predict(run, inputs, network="network.json")
    assert mine.classes[2] == -1 and (np.delete(mine.classes, 2) >= 0).all() and np.isnan(mine.logits[2]).all()
    with pytest.raises(tiebreak.UndecidedError, match="NaN"):
        tiebreak.predict(run, inputs, network="network.json", receipt="receipt.json")
    assert not Path("receipt.json").exists()


def test_wrong_arguments_name_what_to_give(captured):
    run, data, inputs = captured
    Path("other.json").write_text(json.dumps({**NETWORK, "digits": 2}))
    wide = np.zeros((2, 8), np.float32)
    for call, why in [
        (lambda: tiebreak.evaluate(run, data), "network file"),
        (lambda: tiebreak.evaluate(run, data, network="other.json"), "the network gives program"),
        (lambda: tiebreak.evaluate(run, {"kind": "idx"}, network="network.json"), "tiebreak.dataset"),
        (lambda: tiebreak.evaluate(run, {**data, "augment": {}}, network="network.json"), "a table of"),
        (lambda: tiebreak.evaluate(run, {"kind": "tokens", "path": "raw.bin"}, network="network.json"), "without a header"),
        (lambda: tiebreak.evaluate(run, [data["inputs"]], network="network.json"), "1 files are named; 2 are wanted"),
        (lambda: tiebreak.evaluate(run, 3, network="network.json"), "data is"),
        (lambda: tiebreak.evaluate(run, [], network="network.json"), "data names no file"),
        (lambda: tiebreak.predict(run, data=(), network="network.json"), "data names no file"),
        (lambda: tiebreak.evaluate(run, {**data, "inputs": "x.safetensors", "labels": "y.npy", "inputs_tensor": "test"}, network="network.json"), "inputs_tensor is 'test'"),
        (lambda: tiebreak.evaluate(run, data, network=7), "network is no path"),
        (lambda: tiebreak.evaluate(run, data, network="network.json", samples=0), "samples is 0"),
        (lambda: tiebreak.evaluate(run, data, network="network.json", batch=1 << 17), "batch is 131072"),
        (lambda: tiebreak.evaluate(run, data, network="network.json", step=2**32), "step is"),
        (lambda: tiebreak.predict(run, inputs, data=data, network="network.json"), "both inputs and data"),
        (lambda: tiebreak.predict(run, inputs.astype(np.float64), network="network.json"), "inputs are float64"),
        (lambda: tiebreak.predict(run, np.full((2, 7), -1), network="network.json"), "numbers from -1 to -1"),
        (lambda: tiebreak.predict(run, [object()], network="network.json"), "inputs are object"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", samples=3), "no pair of numbers"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", samples=range(0, 4, 2)), "samples is range(0, 4, 2), which leaves samples out"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", samples=(-1, 2)), "samples is -1"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", samples=(0, 1.5)), "samples is 1.5"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", samples=(2, 9)), "the data have 5 samples"),
        (lambda: tiebreak.predict(run, inputs, network="network.json", trace="trace"), "--receipt"),
    ]:
        with pytest.raises(tiebreak.UsageError) as error:
            call()
        assert why in str(error.value), (why, error.value)
    with pytest.raises(tiebreak.UsageError, match="inputs: .*the model takes F32 \\[samples, 7\\]"):
        tiebreak.predict(run, wide, network="network.json")
    Path("report.json").write_text("{}")
    with pytest.raises(tiebreak.MalformedError, match="report.json"):
        tiebreak.evaluate(run, data, network="network.json", expect="report.json")


def test_an_exception_or_a_signal_ends_an_evaluation(captured):
    run, _, inputs = captured
    count = 1 << 19
    np.save("many.npy", np.tile(inputs[:1], (count, 1)))
    np.save("labels.npy", np.zeros(count, np.uint32))
    files, slowly = ["many.npy", "labels.npy"], {"network": "network.json", "batch": 1, "threads": 1}

    def stop(progress):
        assert (progress.unit, progress.total) == ("samples", count)
        raise LookupError("enough")

    def ends(call, error):
        with pytest.raises(error):
            call()
        # The command stops at its next batch, and does not go on unheard.
        time.sleep(0.2)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1

    for call in (lambda **more: tiebreak.evaluate(run, files, **slowly, **more), lambda **more: tiebreak.predict(run, "many.npy", **slowly, **more)):
        ends(lambda: call(progress=stop), LookupError)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        ends(call, KeyboardInterrupt)
