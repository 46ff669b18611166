"""What `Run` reads: states in the names of PyTorch, records, losses, metrics."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import command, gpt, residual

import tiebreak

TYPES = {"F32": np.float32, "I64": np.int64}


def exported(run, step, *more):
    """What the command exports, read by the format's own definition."""
    command("export", run, "--output", f"export-{step}", "--step", step, *more)
    data = Path(f"export-{step}/model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


MLP = {"kind": "mlp", "inputs": 3072, "hidden": [6], "classes": 10}
JOBS = {"gpt": gpt(), "resnet": residual(), "mlp": residual(model=MLP)}


@pytest.mark.parametrize("kind", JOBS)
def test_a_state_dict_has_the_names_shapes_and_bits_of_an_export(folder, kind):
    run = tiebreak.train(JOBS[kind], out="run")
    for step, asked in ((run.steps, None), (0, 0)):
        theirs, mine = exported("run", step), run.state_dict(asked)
        assert set(mine) == set(theirs) and mine
        for name, array in mine.items():
            assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape, name
            assert array.tobytes() == theirs[name].tobytes(), name
            assert array.flags.writeable
    own = run.state_dict(names="program")
    assert own and all(array.base is not None for array in own.values()), "views of the file"


def test_a_change_of_an_array_changes_no_file(folder):
    run = tiebreak.train(gpt(), out="run")
    before = run.state_dict(2)
    name = next(iter(before))
    kept = before[name].copy()
    before[name][...] = 7
    assert (run.state_dict(2)[name] == kept).all()


def test_records_losses_and_metrics_agree(folder):
    run = tiebreak.train(gpt(), out="run")
    records = run.records
    assert [record.kind for record in records] == ["initial"] + ["step"] * 6 + ["final"]
    steps = records[1:-1]
    assert [record.step for record in steps] == list(range(1, 7))
    assert run.losses.dtype == np.float32 and run.losses.tolist() == [record.loss for record in steps]
    assert [np.float32(line["loss"]) for line in run.metrics] == run.losses.tolist()
    assert all(len(record.state) == 64 and record.trace and record.log is None for record in steps)
    assert records[0].loss is None and records[-1].state == steps[-1].state
    assert steps[0].learning_rate == np.float32(1e-2) and steps[-1].cursor == 24
    assert run.checkpoints == [0, 2, 4, 6] and run.steps == 6 and "layers = 2" in run.job


def test_a_state_that_is_not_the_records_is_refused(folder):
    run = tiebreak.train(gpt(), out="run")
    file = next(path for path in Path("run/checkpoints").iterdir() if "2" in path.name)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(tiebreak.MalformedError, match="record of step 2"):
        run.state_dict(2)
    assert run.state_dict(4)
    with pytest.raises(tiebreak.UsageError, match="no checkpoint of step 3"):
        run.state_dict(3)


def test_metrics_that_are_torn_or_damaged(folder):
    run = tiebreak.train(gpt(), out="run")
    file = Path("run/metrics.jsonl")
    whole = file.read_text()
    file.write_text(whole + '{"step":7,"lo')
    assert len(run.metrics) == 6
    for damaged in ("{}\n", "[]\n", "x\n", '{"step":"1"}\n', '{"step":1,"not_finite":3}\n', "[" * 9000 + "\n", "1" * (1 << 17)):
        file.write_text(whole + damaged)
        with pytest.raises(tiebreak.MalformedError, match="line 7"):
            run.metrics
    file.unlink()
    assert run.metrics == []
