"""Hostile and odd inputs raise errors of the package, and never end the interpreter."""

import inspect
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import gpt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak import _native
from tiebreak._job import to_toml

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(), st.text(), max_size=2), st.just(object()), st.just(np.float32("nan")), st.just(np.zeros((0, 3))),
    st.sampled_from(["--help", "-", "", "\0", "\ud800", "\udcff", "/", "..", "a" * 5000, "nowhere", -1, 2**64, 1e308, math.nan]),
)  # fmt: skip
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def raises_or_works(call, *given, **named):
    """An error of the package with its help is right, and so is a result."""
    try:
        return call(*given, **named)
    except tiebreak.Error as error:
        assert error.message and not isinstance(error, tiebreak.BugError), error
        assert not isinstance(error, tiebreak.UsageError) or str(error)
    except TypeError as error:
        # Python's own, for arguments that no function has.
        assert "argument" in str(error), error
    return None


@given(st.data())
@RELAXED
def test_no_argument_of_any_function_crashes(cases, data):
    function = data.draw(st.sampled_from([tiebreak.audit, tiebreak.verify, tiebreak.compare, tiebreak.check_verdict, tiebreak.Run]))
    parameters = [name for name in inspect.signature(function).parameters if name not in ("progress", "report", "page", "verdict")]
    named = {parameters[0]: cases / "runs/honest"} if function is not tiebreak.check_verdict else {"verdict": b"{}"}
    if function is tiebreak.compare:
        named["second"] = cases / "runs/honest"
    # A replay of one step, unless something is wrong before.
    if function is tiebreak.audit:
        named["steps"] = (1, 1)
    for name in data.draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=2)):
        named[name] = data.draw(ODD)
    raises_or_works(function, **named)


@given(st.recursive(ODD, lambda inner: st.dictionaries(st.text(max_size=4), inner, max_size=2) | st.lists(inner, max_size=2), max_leaves=6))
@RELAXED
def test_no_job_crashes(value):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("to be or not to be, that is the question: " * 8)
        for key in ("steps", "model", "data", "optimizer", "schedule", "batch", "commit", "new"):
            if key == "steps" and isinstance(value, int) and value > 3:
                continue  # it would train
            job = gpt(steps=1, **{key: value}) if key != "steps" else gpt(steps=value)
            raises_or_works(tiebreak.train, job, out=Path(folder, f"run-{key}"), data_root=folder, threads=1)


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=200, deadline=None)
def test_a_job_says_what_its_dict_says(text, number, integer):
    tomllib = pytest.importorskip("tomllib")
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    job = {"a": text, "b": {"c": [number, integer, True]}, "d-1": {}}
    assert tomllib.loads(to_toml(job)) == job


@given(st.sampled_from(["run.json", "job.toml", "transcript", "model.safetensors", "checkpoints", "heads", "metrics.jsonl"]),
       st.integers(0, 1 << 16), st.binary(max_size=8), st.booleans())  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_damage_of_a_run_crashes(cases, name, at, new, cut):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        shutil.copytree(cases / "runs/honest", run)
        damaged = run / name
        files = sorted(damaged.iterdir()) if damaged.is_dir() else [damaged]
        file = files[at % len(files)]
        data = file.read_bytes() if file.exists() else b""
        at %= len(data) + 1
        file.write_bytes(data[:at] + new + (b"" if cut else data[at + len(new) :]))
        opened = raises_or_works(tiebreak.Run, run)
        for read in ("records", "losses", "metrics", "checkpoints", "id", "job", "trainer_key", "steps"):
            raises_or_works(lambda name=read: getattr(opened, name) if opened else None)
        if opened:
            raises_or_works(opened.state_dict)
            raises_or_works(opened.state_dict, 4, names="program")
        raises_or_works(tiebreak.verify, run)
        raises_or_works(tiebreak.audit, run, steps=(1, 1), threads=1)


@pytest.mark.parametrize("progress", [3, "bar", object()])
def test_progress_is_a_function_or_a_flag(cases, progress):
    with pytest.raises(tiebreak.UsageError, match="progress"):
        tiebreak.verify(cases / "runs/honest", progress=progress)


def test_words_that_look_like_options_are_paths():
    for call in (tiebreak.Run, tiebreak.verify, tiebreak.audit):
        with pytest.raises(tiebreak.UsageError, match="--help is not a run"):
            call("--help")


def test_a_panic_is_a_bug_report(monkeypatch, capfd):
    with pytest.raises(_native.Panic):
        _native.panics("as planned")
    monkeypatch.setattr(_native, "call", lambda *_: _native.panics("as planned"))
    with pytest.raises(tiebreak.BugError) as error:
        tiebreak.verify("nowhere")
    said = str(error.value)
    assert "as planned" in said and "panics.rs" in said and "report this" in said
    assert capfd.readouterr().err == ""


def test_errors_have_classes_and_help():
    with pytest.raises(ValueError) as error:
        tiebreak.Run("nowhere")
    assert isinstance(error.value, tiebreak.UsageError) and "name the folder of a run" in error.value.help
    with pytest.raises(tiebreak.UsageError, match="device"):
        tiebreak.audit("nowhere", device="tpu")
    with pytest.raises(tiebreak.UsageError, match="not finite"):
        tiebreak.train(gpt(clip_norm=math.inf), out="nowhere")
