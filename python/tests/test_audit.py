"""Audits, verdicts and comparisons in Python say what the command says."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import command, gpt

import tiebreak

# Times, and commands that name files.
VOLATILE = ("seconds", "next", "verdict", "verdict_file")


def test_a_cheat_is_convicted_from_python(cases):
    report = tiebreak.audit(cases / "runs/cheat-operator", cases / "trainer.pub")
    (found,) = report.differences
    assert (report.outcome, found.step, found.kind) == ("diverges", 5, "operator") and "block0.gelu" in found.what
    assert not report.matches and "block0.gelu" in str(report)
    ruling = tiebreak.check_verdict(report.verdict, key=cases / "trainer.pub")
    assert ruling.convicts and ruling.step == 5 and "element 0" in str(ruling)
    assert any("signed by" in line for line in ruling.checked)
    # Another engine, the same evidence.
    assert tiebreak.audit(cases / "runs/cheat-operator", device="reference").verdict == report.verdict


def test_every_hostile_run_ends_as_its_list_says(cases):
    listed = json.loads((cases / "cases.json").read_text())
    played = 0
    for case in listed:
        words = case["command"]
        if words[0] != "audit" or not words[1].startswith("runs/"):
            continue
        allowed = {"--trainer-key", "--verdict"}
        if not set(words[2::2]) <= allowed:
            continue
        played += 1
        try:
            report = tiebreak.audit(cases / words[1], cases / "trainer.pub")
        except tiebreak.Error as error:
            assert (case["exit"], error.exit_code) in ((4, 4), (3, 3), (2, 2)), (case, error)
            continue
        wanted = {0: ("matches",), 1: ("diverges", "inconsistent")}.get(case["exit"])
        assert wanted is None or report.outcome in wanted, (case, report)
        assert wanted is not None or report.outcome not in ("matches", "diverges", "inconsistent"), (case, report)
    assert played > 30, played


def test_a_report_is_the_commands_json(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("honest", "cheat-batch"):
        mine = tiebreak.audit(cases / "runs" / run, cases / "trainer.pub").to_dict()
        theirs = command("audit", cases / "runs" / run, "--trainer-key", cases / "trainer.pub", exit_code=int(run != "honest"))
        for key in VOLATILE:
            mine.pop(key, None), theirs.pop(key, None)
        assert mine == theirs
    # The command's file has the bytes that Python returns, and Python writes none unasked.
    verdict = tiebreak.audit(cases / "runs/cheat-batch").verdict
    assert verdict == Path("verdict.json").read_bytes() and len(list(tmp_path.iterdir())) == 1
    asked = tiebreak.audit(cases / "runs/cheat-batch", verdict="asked.json", report="report.json")
    assert Path("asked.json").read_bytes() == asked.verdict and asked.to_dict()["verdict_file"] == "asked.json"
    assert json.loads(Path("report.json").read_text())["run"] == asked.to_dict()["run"]


def test_a_part_is_replayed_and_seeds_repeat_it(cases):
    run = tiebreak.Run(cases / "runs/honest")
    part = tiebreak.audit(run, steps=(3, 4))
    assert part.replayed == [(3, 4)] and part.matches
    sample = tiebreak.audit(run, sample=0.5, seed=3, jobs=2)
    assert sample.replayed == tiebreak.audit(run, sample=0.5, seed=3).replayed and len(sample.replayed) == 2


def test_an_audit_stops_where_the_caller_stops_it(cases):
    def stop(progress):
        if progress.unit == "steps" and progress.done:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        tiebreak.audit(cases / "runs/honest", device="reference", progress=stop)


def test_verify_finds_what_needs_no_replay(cases, folder):
    key = cases / "trainer.pub"
    honest = tiebreak.verify(cases / "runs/honest", key)
    assert honest.ok and "signed by" in honest.signed
    cheated = tiebreak.verify(cases / "runs/history-learning-rate", key)
    assert not cheated.ok and cheated.exit_code == 1 and cheated.to_dict()["inconsistent"] in str(cheated)
    damaged = tiebreak.verify(cases / "runs/damaged-data-flipped", key)
    assert not damaged.ok and damaged.exit_code == 4 and damaged.to_dict()["damaged"]
    with pytest.raises(tiebreak.MalformedError):
        tiebreak.verify(cases / "runs/honest", key=Path("me.key.pub"))


def test_two_histories_of_a_run_convict(cases):
    found = tiebreak.compare(cases / "runs/honest", cases / "runs/cheat-operator")
    assert not found.same and (found.result, found.step) == ("differs", 5)
    assert tiebreak.check_verdict(found.verdict).convicts
    assert found.to_dict()["verdict_file"] is None


def test_two_jobs_are_told_apart(folder):
    tiebreak.train(gpt(), out="a")
    tiebreak.train(gpt(seed=2), out="b")
    found = tiebreak.compare("a", "b")
    assert found.result == "other_computation" and found.step is None and found.verdict is None


def test_a_damaged_verdict_is_malformed(cases):
    verdict = tiebreak.audit(cases / "runs/cheat-operator").verdict
    assert tiebreak.check_verdict(bytearray(verdict)).convicts
    for damaged in (b"", b"{}", verdict[:-2], verdict.replace(b'"step"', b'"stop"', 1), b"\0" * 100):
        if damaged != verdict:
            with pytest.raises(tiebreak.MalformedError):
                tiebreak.check_verdict(damaged)


def test_a_run_that_lost_a_file_says_so(cases, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(cases / "runs/honest", run)
    transcript = (run / "transcript").read_bytes()
    (run / "transcript").write_bytes(transcript[:40] + b"\xff" + transcript[41:])
    for call in (tiebreak.audit, tiebreak.verify, lambda run: tiebreak.Run(run).records, lambda run: tiebreak.Run(run).losses):
        with pytest.raises(tiebreak.MalformedError) as error:
            call(run)
        assert "transcript" in str(error.value)
