"""Training in Python gives the command's bits, stops on Ctrl-C, and goes on."""

import functools
import http.server
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import command, gpt

import tiebreak
from tiebreak._job import to_toml


def test_python_trains_and_the_command_audits(folder):
    run = tiebreak.train(gpt(), out="run", key="me.key")
    assert not list(folder.glob(".tiebreak-*")), "the job file of a dict is gone"
    report = command("audit", "run", "--trainer-key", "me.key.pub")
    assert report["outcome"] == {"result": "matches"} and report["run"] == run.id
    assert run.trainer_key == Path("me.key.pub").read_text().strip()


def test_the_command_trains_and_python_audits(folder):
    Path("job.toml").write_text(to_toml(gpt()))
    command("train", "job.toml", "--out", "theirs", "--key", "me.key")
    report = tiebreak.audit("theirs", Path("me.key.pub"), device="reference")
    assert report.matches and report.is_complete and report.differences == [] and report.verdict is None
    assert report.replayed == [(1, 2), (3, 4), (5, 6)]
    # The same job in Python: the same bits of state, and of every other promise.
    mine = tiebreak.train("job.toml", out="mine")
    theirs = tiebreak.Run("theirs")
    assert mine.records == theirs.records and len(mine.records) == 8
    assert tiebreak.compare(mine, theirs).same
    for name, array in mine.state_dict(4).items():
        assert array.tobytes() == theirs.state_dict(4)[name].tobytes(), name


def test_computing_again_changes_no_record(folder):
    kept, again = tiebreak.train(gpt(), out="kept"), tiebreak.train(gpt(), out="again", recompute=True)
    assert kept.records == again.records
    assert tiebreak.audit(kept, recompute=True).matches
    with pytest.raises(tiebreak.UsageError, match="--recompute is for exact jobs"):
        tiebreak.train(gpt(rounding={}), out="logged", recompute=True)
    with pytest.raises(tiebreak.UsageError, match="recompute"):
        tiebreak.train(gpt(), out="run", recompute=1)


def test_a_dict_and_its_file_are_one_job(folder):
    job = gpt(seed=np.int64(7), clip_norm=np.float32(1.0))
    Path("job.toml").write_text(to_toml(job))
    assert tiebreak.train(job, out="a").id != tiebreak.train("job.toml", out="b").id  # each run has a nonce
    assert tiebreak.compare("a", "b").same
    assert tiebreak.train(job, out="c", steps=2).steps == 2


def test_files_lie_in_several_folders_and_at_an_address(folder):
    for name in ("mine", "data"):
        Path(name).mkdir()
    Path("text.txt").rename("data/text.txt")
    job = gpt(data={"kind": "bytes", "path": "../data/text.txt"})
    Path("mine/job.toml").write_text(to_toml(job))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="data")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            there = gpt(data={"kind": "bytes", "path": f"{address}/text.txt"})
            runs = [
                tiebreak.train("mine/job.toml", out="a", data_root=["data", Path("mine")]),
                tiebreak.train(job, out="b", data_root=("mine", "data")),
                tiebreak.train(there, out="c", data_root=address),
                tiebreak.train(there, out="d", data_root=[address, "mine"]),
            ]
        finally:
            server.shutdown()
    # Runs of one job differ in their nonces alone.
    assert runs[0].records == runs[1].records and runs[2].records == runs[3].records
    for run in runs:
        assert Path(run.path, "data/data-0.bin").read_bytes() == Path("data/text.txt").read_bytes()
    for given, why in (([], "leaves"), ("mine", "leaves"), ([1], "data_root is no path"), (7, "data_root is 7"), ([""], "names no file")):
        with pytest.raises(tiebreak.UsageError, match=why):
            tiebreak.train("mine/job.toml", out="refused", data_root=given)
    with pytest.raises(tiebreak.UsageError, match="is an address that nobody allowed"):
        tiebreak.train(there, out="refused", data_root=["mine"])
    assert not Path("refused").exists()


def test_progress_reaches_a_function_and_a_second_call_has_nothing_to_do(folder):
    seen = []
    tiebreak.train(gpt(), out="run", progress=seen.append)
    assert seen[-1].done == seen[-1].total == 6 and seen[-1].unit == "steps" and "loss" in seen[-1].message
    before = tiebreak.Run("run").records
    assert tiebreak.train(gpt(), out="run").records == before
    with pytest.raises(tiebreak.UsageError, match="resume=False"):
        tiebreak.train(gpt(), out="run", resume=False)
    with pytest.raises(tiebreak.UsageError, match="not the job"):
        tiebreak.train(gpt(seed=1), out="run")


def test_an_exception_of_the_callers_stops_training_which_goes_on_later(folder):
    def stop(progress):
        if progress.unit == "steps" and progress.done >= 3:
            raise LookupError("enough")

    long = gpt(steps=400)
    with pytest.raises(LookupError, match="enough"):
        tiebreak.train(long, out="run", progress=stop)
    done = len(tiebreak.Run("run").records) - 1
    assert 3 <= done < 400 and tiebreak.Run("run").checkpoints[-1] == done


def test_ctrl_c_waits_for_the_step_at_hand(folder):
    def interrupt(progress):
        if progress.unit == "steps" and progress.done:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tiebreak.train(gpt(steps=40), out="run", device="reference", progress=interrupt)
    stopped = tiebreak.Run("run")
    done = len(stopped.records) - 1
    assert 1 <= done < 40 and stopped.checkpoints[-1] == done
    assert tiebreak.train(gpt(steps=40), out="run").state_dict()


PROGRAM = """
import sys, tiebreak
from conftest import gpt
print("begun", flush=True)
tiebreak.train(gpt(steps=40), out="run", progress=lambda p: print(p.done, flush=True))
"""


def test_ctrl_c_is_a_keyboard_interrupt_and_the_run_goes_on_to_the_same_bits(folder):
    whole = tiebreak.train(gpt(steps=40), out="whole")
    tests = str(Path(__file__).parent)
    program = subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r}){PROGRAM}"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "begun\n"
    while program.stdout.readline().strip() in ("0", ""):
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode in (-signal.SIGINT, 130) and errors.strip().endswith("KeyboardInterrupt"), errors
    stopped = tiebreak.Run("run")
    done = len(stopped.records) - 1
    assert 1 <= done < 40 and stopped.checkpoints[-1] == done, "the step at hand was finished, with a checkpoint"
    again = tiebreak.train(gpt(steps=40), out="run")
    assert again.records == whole.records and tiebreak.compare("run", "whole").same


def test_a_bar_is_drawn_where_it_is_asked_for(folder, capsys):
    tiebreak.train(gpt(), out="run", progress=True)
    drawn = capsys.readouterr()
    assert "6/6 steps" in drawn.err and drawn.err.endswith("\r") and drawn.out == ""
    tiebreak.train(gpt(), out="other")
    assert capsys.readouterr().err == "", "no terminal, no bar"


def test_a_loss_that_is_not_finite_stops_with_a_remedy(folder):
    job = gpt(schedule={"peak": 1e30}, steps=30)
    job["optimizer"] = {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tiebreak.RunWarning)
        with pytest.raises(tiebreak.UndecidedError, match="stop_on_nan=False"):
            tiebreak.train(job, out="run")
        with pytest.warns(tiebreak.RunWarning):
            tiebreak.train(job, out="run", stop_on_nan=False)
    assert not np.isfinite(tiebreak.Run("run").losses).all()
    assert any(isinstance(line["loss"], float) and not np.isfinite(line["loss"]) for line in tiebreak.Run("run").metrics)
