"""A recording keeps each batch of a loop, goes on after any end, and becomes the run that training on its data files gives."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import command
from hypothesis import given
from hypothesis import strategies as st
from test_hostile import ODD, RELAXED, raises_or_works

import tiebreak

STEPS = 6


def job(**more):
    """A perceptron on rows of five numbers, four samples a step."""
    return {
        "model": {"kind": "mlp", "inputs": 5, "hidden": [4], "classes": 3},
        "data": {"kind": "arrays", "dtype": "f32"},
        "optimizer": {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.0},
        "schedule": {"peak": 0.1},
        "batch": {"micro_batch": 2, "micro_batches": 2},
        "checkpoint": {"every": 4},
        **more,
    }


def batches(count=STEPS):
    """The same batches in each call."""
    draw = np.random.default_rng(7)
    for _ in range(count):
        yield draw.standard_normal((4, 5)).astype(np.float32), draw.integers(0, 3, 4)


def record(out="run", stop=STEPS, given=None, **more):
    """Records up to a step, as a loop that leaves out what is there."""
    with tiebreak.Recorder(given or job(), **{"out": out, "steps": STEPS, "key": "me.key", **more}) as run:
        for batch in itertools.islice(batches(), run.done, stop):
            run.step(batch)
    return run


def data_files(out="run", names=("inputs.npy", "labels.npy")):
    """The data files of a recording, where its job names them."""
    os.makedirs("recorded", exist_ok=True)
    for number, name in enumerate(names):
        Path("recorded", name).write_bytes(Path(out, f"data/data-{number}.bin").read_bytes())


def contents(out):
    """Each file but those that hold a nonce, or times."""
    files = (file for file in Path(out).rglob("*") if file.is_file())
    own = ("run.json", "metrics.jsonl", "lock", "events.out.tfevents.tiebreak")
    return {str(file.relative_to(out)): file.read_bytes() for file in files if file.name not in own and "heads" not in file.parts}


def same_run(out, names=("inputs.npy", "labels.npy")):
    """The recording in `out` has the files and the losses of a training on its data files."""
    data_files(out, names)
    text = tiebreak.Run(out).job
    Path("again.toml").write_text(text)
    command("train", "again.toml", "--out", f"{out}-trained", "--key", "me.key")
    assert contents(out) == contents(f"{out}-trained")
    ours, theirs = (json.loads(Path(folder, "run.json").read_text()) for folder in (out, f"{out}-trained"))
    assert {**ours, "nonce": ""} == {**theirs, "nonce": ""}
    assert sorted(path.name for path in Path(out, "heads").iterdir()) == sorted(path.name for path in Path(f"{out}-trained", "heads").iterdir())
    lines = ([{**json.loads(line), "seconds": 0, "samples_per_second": 0} for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
             for folder in (out, f"{out}-trained"))
    assert next(lines) == next(lines)
    return tiebreak.Run(f"{out}-trained")


def test_a_recording_is_the_run_of_its_data_and_says_who_chose_them(folder):
    losses = []
    with tiebreak.Recorder(job(), out="run", steps=STEPS, key="me.key") as run:
        assert (run.done, run.steps, run.is_complete) == (0, STEPS, False)
        for number, batch in enumerate(batches()):
            losses.append(run.step(batch))
            assert run.done == number + 1 and type(losses[-1]) is float
        assert run.is_complete
        with pytest.raises(tiebreak.UsageError, match="all 6 steps are done"):
            run.step(batch)
    trained = same_run("run")
    assert losses == [float(loss) for loss in trained.losses] and run.run.id == tiebreak.Run("run").id
    stored = [np.load(f"recorded/{name}.npy") for name in ("inputs", "labels")]
    assert all(np.array_equal(array, np.concatenate(given)) for array, given in zip(stored, zip(*batches())))
    report = tiebreak.audit("run", Path("me.key.pub"))
    assert report.matches and report.is_complete
    chosen = "how the batches were chosen: the trainer chose them and their order (data.sampling is in_order)"
    assert report.not_checked.count(chosen) == 1
    assert command("verify", "run", "--trainer-key", "me.key.pub")["not_checked"].count(chosen) == 1
    # The same call has nothing to do, and another one is refused.
    assert record().done == STEPS
    with pytest.raises(tiebreak.UsageError, match="a run of another job"):
        record(given=job(seed=1))
    with pytest.raises(tiebreak.UsageError, match="has a run already"):
        record(resume=False)


def test_token_ids_are_windows_one_behind_the_other(folder):
    model = {"kind": "gpt", "vocabulary": 31, "context": 3, "layers": 1, "heads": 1, "width": 4, "dropout": 0.1}
    text = job(model=model, data={"kind": "tokens", "dtype": "u16"}, batch={"micro_batch": 2})
    ids = np.random.default_rng(3).integers(0, 31, (STEPS, 2, 4))
    with tiebreak.Recorder(text, out="pairs", steps=STEPS, key="me.key") as pairs:
        first = [pairs.step((batch[:, :-1], batch[:, 1:])) for batch in ids]
    with tiebreak.Recorder(text, out="ids", steps=STEPS, key="me.key") as alone:
        assert first == [alone.step(batch.astype(np.uint8)) for batch in ids]
    assert tiebreak.compare("pairs", "ids").same
    same_run("pairs", ["tokens.npy"])
    assert np.array_equal(np.load("recorded/tokens.npy"), ids.reshape(-1))
    with pytest.raises(tiebreak.BatchError, match="the labels are not the next token ids.*\nhelp: give token ids"):
        with tiebreak.Recorder(text, out="other", steps=STEPS) as other:
            other.step((ids[0][:, :-1], ids[0][:, :-1]))


def test_an_exception_leaves_a_recording_that_goes_on(folder):
    class Broken(Exception):
        pass

    for done in (0, 3, 4, 5):
        out = f"run-{done}"
        with pytest.raises(Broken) as raised:
            with tiebreak.Recorder(job(), out=out, steps=STEPS, key="me.key") as run:
                for batch in itertools.islice(batches(), done):
                    run.step(batch)
                raise Broken
        if sys.version_info >= (3, 11):
            assert f"has {done} of 6 steps" in raised.value.__notes__[0] and f"leave out the first {done} batches" in raised.value.__notes__[0]
        assert not run.is_complete and not Path(out, "run.json").exists()
        with pytest.raises(tiebreak.UsageError, match="is no run yet"):
            run.run
        with pytest.raises(tiebreak.UsageError, match="is a recording that is not finished"):
            tiebreak.verify(out)
        with pytest.raises(tiebreak.UsageError, match="has a recording already"):
            record(out, resume=False)
        with pytest.raises(tiebreak.UsageError, match="a recording of another job"):
            record(out, given=job(seed=1))
        with tiebreak.Recorder(job(), out=out, steps=STEPS, key="me.key") as again:
            assert again.done == done
            for batch in itertools.islice(batches(), again.done, again.steps):
                again.step(batch)
        same_run(out)


def test_a_loop_that_ends_too_early_leaves_no_run(folder):
    with pytest.raises(tiebreak.UndecidedError, match="has 2 of 6 steps and is no run yet\nhelp: .*leave out the first 2 batches"):
        record(stop=2)
    assert not Path("run/run.json").exists() and not list(Path("run/heads").iterdir())
    record()
    same_run("run")


def test_a_killed_recording_goes_on(folder):
    script = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from test_recorder import batches, job
import tiebreak
with tiebreak.Recorder(job(), out="run", steps=6, key="me.key") as run:
    for batch in batches():
        run.step(batch)
        if run.done == 5:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])})
    assert ended.returncode == -signal.SIGKILL
    with tiebreak.Recorder(job(), out="run", steps=STEPS, key="me.key") as run:
        # Step 5 is computed again from its stored batch, and no batch is stored twice.
        assert run.done == 5
        for batch in itertools.islice(batches(), run.done, run.steps):
            run.step(batch)
    same_run("run")


def test_ctrl_c_ends_a_step_and_the_recording_goes_on(folder):
    def interrupted():
        for number, batch in enumerate(batches()):
            if number == 3:
                signal.raise_signal(signal.SIGINT)
            yield batch

    with pytest.raises(KeyboardInterrupt):
        with tiebreak.Recorder(job(), out="run", steps=STEPS, key="me.key") as run:
            for batch in interrupted():
                run.step(batch)
    done = run.done
    assert 3 <= done < STEPS
    record()
    same_run("run")

    def tell(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    # An exception of the caller's own function ends the block, and no step is taken behind it.
    with tiebreak.Recorder(job(), out="told", steps=STEPS, key="me.key", progress=tell) as run:
        caught = 0
        for batch in batches():
            try:
                run.step(batch)
            except KeyboardInterrupt:
                caught += 1
                break
        if caught:
            with pytest.raises(tiebreak.UsageError, match="the recording has ended after"):
                run.step(batch)
            pytest.raises(tiebreak.UndecidedError, run.__exit__, None, None, None)
            run._is_run = True


def test_odd_batches_raise_and_leave_the_recording_as_it_is(folder):
    inputs, labels = next(batches())
    bad = inputs.copy()
    bad[2, 1] = np.nan
    with tiebreak.Recorder(job(), out="run", steps=STEPS, key="me.key") as run:
        for batch, why, instead in [
            ((inputs.astype(np.float64), labels), "the inputs are float64, and the recording takes float32", "astype"),
            ((inputs.astype(np.float16), labels), "the inputs are float16", "float32"),
            ((inputs.astype(np.complex64), labels), "the inputs are complex64", "float32"),
            ((inputs.astype(object), labels), "the inputs are object", "float32"),
            ((inputs[:3], labels[:3]), "the inputs have 3 samples, and a step takes 4", "drop_last=True"),
            ((inputs[:0], labels[:0]), "the inputs have 0 samples", "drop_last"),
            ((inputs.T, labels), r"the inputs have the shape \[5, 4\], and a step takes \[4, 5\]", "reshape"),
            ((inputs[0], labels), r"the inputs have the shape \[5\]", "reshape"),
            ((np.float32(1), labels), r"the inputs have the shape \[\]", "reshape"),
            ((bad, labels), r"the inputs hold nan at \[2, 1\]", "leave such samples out"),
            ((inputs * np.float32(np.inf), labels), "the inputs hold -?inf at", "leave such samples out"),
            ((inputs, labels[:2]), "the labels have 2 samples", "drop_last"),
            ((inputs, labels.astype(np.float32)), "the labels are float32, and integers are wanted", "give labels as integers"),
            ((inputs, labels - 100), "the labels hold -", "-100"),
            ((inputs, labels + 2**32), "the labels hold 4294967", "from 0 to 4294967295"),
            ((inputs, labels.astype(bool)), "the labels are bool", "integers"),
            ((inputs, labels + 3), "among its labels, which is not below 3", "number of classes"),
            ((np.ma.masked_array(inputs), labels), "a masked array", "filled"),
            (([[1.0], [1.0, 2.0]], labels), "the inputs, a list, hold no plain numbers", "tensor"),
            (({"input_ids": inputs}, labels), "the inputs are a dict", "input_ids"),
            ({"inputs": inputs}, "it is a dict", "inputs, labels"),
            ((inputs, labels, labels), "it is a tuple of 3 parts", "inputs, labels"),
            (inputs, "it is a ndarray", "inputs, labels"),
            (None, "it is a NoneType", "inputs, labels"),
        ]:  # fmt: skip
            with pytest.raises(tiebreak.BatchError, match=why) as error:
                run.step(batch)
            assert instead in error.value.help, (batch, error.value.help)
            assert run.done == 0
        for number, (inputs, labels) in enumerate(batches()):
            # Any memory layout and any integers are the same batch; lists are one too.
            forms = [
                (np.asfortranarray(inputs), labels.astype(np.uint8)),
                (inputs[::-1][::-1], labels.astype(">i8")),
                [inputs.astype(">f4"), labels.tolist()],
            ]
            run.step(forms[number % 3])
    record("plain")
    assert tiebreak.compare("run", "plain").same
    same_run("run")


@given(st.one_of(ODD, st.tuples(ODD, ODD), st.tuples(st.just(np.zeros((4, 5), np.float32)), ODD)))
@RELAXED
def test_no_batch_crashes(tmp_path_factory, batch):
    recorder = tiebreak.Recorder(job(), out=tmp_path_factory.mktemp("odd") / "run", steps=STEPS)
    with pytest.raises(tiebreak.UndecidedError):
        with recorder as run:
            raises_or_works(run.step, batch)


@pytest.mark.parametrize(
    "given, why",
    [
        (dict(out="run", steps=STEPS, program="job.toml"), "program is a str"),
        (dict(out="run"), "steps is None"),
        (dict(out="run", steps=0), "steps is 0"),
        (dict(out="run", steps=STEPS, program=job(data={"kind": "bytes", "dtype": "u8"})), "named by kind and dtype alone"),
        (dict(out="run", steps=STEPS, program=job(data={"kind": "arrays", "dtype": "f16"})), "data.dtype is 'f16'"),
        (dict(out="run", steps=STEPS, program=job(data={"kind": "arrays", "dtype": "f32", "inputs": "a.npy"})), "by kind and dtype alone"),
        (dict(out="run", steps=STEPS, commit={"scheme": 1}), "commit.scheme: 1 hides what commitments are of"),
        (dict(out="run", steps=STEPS, rounding={"threshold": 1 << 24}), "rounding.threshold is 16777216; native kernels need at most"),
        (dict(out="run", steps=STEPS, evaluation={"every": 1}), "evaluation: a recording makes none"),
        (dict(out="run", steps=STEPS, nonsense=1), "nonsense: there is no such key"),
        (dict(out="run", steps=STEPS, device="tpu"), "device is 'tpu'"),
        (dict(out="run", steps=STEPS, key="nowhere.key"), "nowhere.key"),
        (dict(out="run", steps=STEPS, data={"kind": "tokens", "dtype": "u16"}), "data.kind"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(folder, given, why):
    given = {"program": job(), **given}
    with pytest.raises(tiebreak.UsageError, match=why) as error:
        with tiebreak.Recorder(**given):
            pass
    assert str(error.value) and not Path("run").exists() or not list(Path("run").rglob("recording.json"))
    assert not list(folder.glob(".tiebreak-*")), "the job file of a dict is gone"


@pytest.mark.parametrize(
    "given",
    [
        dict(device="gpu", adapter="no such adapter"),
        dict(key="nowhere.key"),
        dict(native="no such kernel"),
        dict(commit={"scheme": 1}),
        dict(rounding={"threshold": 1 << 24}),
    ],
)
def test_a_recorder_that_refuses_makes_no_folder(folder, given):
    before, given = sorted(folder.rglob("*")), dict(given)
    table = {name: given.pop(name) for name in ("commit", "rounding") if name in given}
    with pytest.raises(tiebreak.Error):
        with tiebreak.Recorder(job(**table), out="deep/run", steps=STEPS, **given):
            pass
    assert sorted(folder.rglob("*")) == before


def test_a_recorder_outside_of_its_block_takes_nothing(folder):
    run = tiebreak.Recorder(job(), out="run", steps=STEPS)
    with pytest.raises(tiebreak.UsageError, match="is not open.*\nhelp: .*with tiebreak.Recorder"):
        run.step(next(batches()))
    record()
    done = tiebreak.Recorder(job(), out="run", steps=STEPS)
    with done, pytest.raises(tiebreak.UsageError, match="was opened before"):
        done.__enter__()


def test_a_loss_that_is_not_finite_stops_and_goes_on_only_if_asked(folder):
    steep = job(schedule={"peak": 1e38})
    with pytest.raises(tiebreak.UndecidedError, match="help: lower the learning rate") as stopped:
        record(given=steep)
    assert "step" in str(stopped.value) and not Path("run/run.json").exists()
    run = record(given=steep, stop_on_nan=False)
    assert run.is_complete and not np.isfinite(run.run.losses).all()
    assert tiebreak.audit("run").matches
