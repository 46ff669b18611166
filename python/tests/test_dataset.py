"""`dataset` writes what its items say, in little memory, and goes on after every interruption to the same bytes."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak import _store

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(
    torch is None and "TIEBREAK_REQUIRE_TORCH" not in os.environ,
    reason="NOT TESTED: there is no PyTorch, so datasets of tensors are not (TIEBREAK_REQUIRE_TORCH makes that a failure)",
)


class Pairs:
    """A dataset of the smallest kind, which can fail at an item once."""

    def __init__(self, count, shape=(3, 2), fails=None):
        self.count, self.shape, self.fails, self.read = count, shape, fails, []

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        self.read.append(place)
        if self.fails and place == self.fails[0]:
            raise self.fails[1]
        return np.full(self.shape, place, dtype=np.float32) + np.float32(0.5), place % 7


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != "dataset.lock"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "|u1"])
def test_files_are_those_that_numpy_writes(dtype):
    inputs = np.random.default_rng(1).integers(0, 200, (5, 2, 3, 4)).astype(dtype)[:, :, ::-1]
    data = tiebreak.dataset((inputs, np.arange(5)), "data")
    name = {"f4": "f32", "f2": "f16", "u1": "u8"}[dtype[1:]]
    assert data == {"kind": "arrays", "inputs": "data/inputs.npy", "labels": "data/labels.npy", "dtype": name}
    np.save("inputs.npy", np.ascontiguousarray(inputs).astype(dtype.replace(">", "<")))
    np.save("labels.npy", np.arange(5, dtype=np.uint32))
    written = files("data")
    assert set(written) == {"inputs.npy", "labels.npy", "dataset.json"}
    assert written["inputs.npy"] == Path("inputs.npy").read_bytes() and written["labels.npy"] == Path("labels.npy").read_bytes()
    said = json.loads(written["dataset.json"])
    assert said["count"] == 5 and said["files"]["inputs.npy"] == {"dtype": name, "shape": [5, 2, 3, 4]}


def test_a_run_takes_what_it_returns():
    job = {"steps": 2, "optimizer": {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0}, "schedule": {"peak": 0.1}, "batch": {"micro_batch": 2}}
    mlp = {"kind": "mlp", "inputs": 6, "hidden": [], "classes": 7}
    run = tiebreak.train({**job, "model": mlp, "data": tiebreak.dataset(Pairs(9), "pairs")}, out="run")
    assert len(run.losses) == 2 and np.isfinite(run.losses).all()
    texts = [[1, 2, 3, 4], np.array([5, 6, 7], dtype=np.uint8), (8, 9, np.int64(10), 11)]
    data = tiebreak.dataset(texts, "texts")
    assert data == {"kind": "tokens", "path": "texts/tokens.npy", "dtype": "u32"}
    assert np.load("texts/tokens.npy").tolist() == list(range(1, 12)) and np.load("texts/tokens.npy").dtype == np.dtype("<u4")
    gpt = {"kind": "gpt", "vocabulary": 12, "context": 4, "layers": 1, "heads": 1, "width": 4}
    assert len(tiebreak.train({**job, "model": gpt, "data": data}, out="gpt").losses) == 2


@needs_torch
def test_tensors_and_bfloat16_are_their_bits():
    values = torch.tensor([1.0, -2.5, 3.1, 1e-30], dtype=torch.bfloat16)
    items = [(values.reshape(2, 2).T, torch.tensor(1)), (values.reshape(2, 2).requires_grad_(), 2)]
    data = tiebreak.dataset(items, "data")
    assert data["inputs"] == "data/inputs.safetensors" and data["dtype"] == "bf16" and data["inputs_tensor"] == "inputs"
    bits = np.frombuffer(Path(data["inputs"]).read_bytes()[128:], np.uint16)
    own = values.detach().view(torch.int16).numpy().view(np.uint16)
    assert bits.tolist() == [own[0], own[2], own[1], own[3], *own]
    job = {"steps": 2, "optimizer": {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.0}, "schedule": {"peak": 0.1}, "batch": {"micro_batch": 1}}
    model = {"kind": "mlp", "inputs": 4, "hidden": [], "classes": 3}
    assert len(tiebreak.train({**job, "model": model, "data": data}, out="run").losses) == 2
    tensors = torch.utils.data.TensorDataset(torch.randn(4, 3)[:, ::2], torch.arange(4))
    tiebreak.dataset(tensors, "tensors")
    assert np.load("tensors/inputs.npy").tolist() == tensors.tensors[0].tolist()
    for item, why in [(torch.zeros(2, device="meta"), "has no plain numbers"), (torch.eye(2).to_sparse(), "has no plain numbers")]:
        with pytest.raises(tiebreak.UsageError, match=why):
            tiebreak.dataset([(item, 1)], "odd")
    with pytest.raises(tiebreak.UsageError, match="loader.dataset"):
        tiebreak.dataset(torch.utils.data.DataLoader(tensors), "odd")


@pytest.mark.parametrize("stop", [LookupError("gone"), KeyboardInterrupt(), OSError("its own disk")])
@pytest.mark.parametrize("place", [0, 1, 6, 9])
def test_an_interrupted_call_goes_on_at_the_next_item(stop, place):
    tiebreak.dataset(Pairs(10), "whole")
    with pytest.raises(type(stop)):
        tiebreak.dataset(Pairs(10, fails=(place, stop)), "data")
    assert not {"inputs.npy", "labels.npy", "dataset.json"} & set(files("data") if place else ())
    if place:
        for other, why in [(Pairs(11), "10 items; the one given has 11"), (Pairs(10, (6,)), "f32 \\[6\\]")]:
            with pytest.raises(tiebreak.UsageError, match=why):
                tiebreak.dataset(other, "data")
        with pytest.raises(tiebreak.UsageError, match="item 0 is not the one"):
            tiebreak.dataset((np.zeros((10, 3, 2), np.float32), np.arange(10)), "data")
    again = Pairs(10)
    tiebreak.dataset(again, "data")
    assert again.read == sorted({0, max(place - 1, 0)} | set(range(place, 10))), "the first and the last written one are compared"
    assert files("data") == files("whole")


def test_what_a_kill_before_the_first_journal_left_is_written_over():
    tiebreak.dataset(Pairs(5), "whole")
    os.mkdir("data")
    Path("data/inputs.npy.part").write_bytes(b"x" * 5000)
    tiebreak.dataset(Pairs(5), "data")
    assert files("data") == files("whole")


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
import tiebreak, test_dataset
class Slow(test_dataset.Pairs):
    def __getitem__(self, place):
        time.sleep(0.001)
        return super().__getitem__(place)
tiebreak._store.SAVE_SECONDS = 0.02
tiebreak.dataset(Slow(500), "data", progress=lambda p: print(p.done, flush=True))
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_killed_call_goes_on_to_the_same_bytes(how):
    tiebreak.dataset(Pairs(500), "whole")
    code = PROGRAM.format(tests=str(Path(__file__).parent))
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while int(program.stdout.readline() or 10**9) < 60:
        assert program.poll() is None
    with pytest.raises(tiebreak.UndecidedError, match="another call writes data"):
        tiebreak.dataset(Pairs(500), "data")
    program.send_signal(getattr(signal, how))
    _, errors = program.communicate(timeout=60)
    assert program.returncode != 0 and (how == "SIGKILL" or "KeyboardInterrupt" in errors), errors
    done = json.loads(Path("data/dataset.json.part").read_text())["done"]
    assert 0 < done < 500 and not os.path.exists("data/dataset.json")
    again = Pairs(500)
    tiebreak.dataset(again, "data")
    assert len(again.read) == 500 - done + 2 and files("data") == files("whole")


def test_each_crash_while_the_files_get_their_names_is_made_good(monkeypatch):
    tiebreak.dataset(Pairs(5), "whole")
    replace = os.replace
    for crash in range(4):
        calls = []

        def stop(old, new, calls=calls, crash=crash):
            calls.append(new)
            if len(calls) > crash:
                raise SystemError("killed")
            replace(old, new)

        with monkeypatch.context() as patch, pytest.raises(SystemError):
            patch.setattr(os, "replace", stop)
            tiebreak.dataset(Pairs(5), f"data-{crash}")
        assert not os.path.exists(f"data-{crash}/dataset.json")
        tiebreak.dataset(Pairs(5), f"data-{crash}")
        assert files(f"data-{crash}") == files("whole"), crash


def test_a_whole_dataset_is_written_once(caplog):
    tiebreak.dataset(Pairs(6), "data")
    before = {path: os.stat(path).st_mtime_ns for path in Path("data").iterdir()}
    again, seen = Pairs(6), []
    with caplog.at_level("INFO", "tiebreak"):
        data = tiebreak.dataset(again, "data", progress=seen.append)
    assert data["inputs"] == "data/inputs.npy" and again.read == [0, 5] and "has all 6 items: nothing is written" in caplog.text
    assert seen[-1].done == seen[-1].total == 6 and seen[-1].unit == "items"
    assert {path: os.stat(path).st_mtime_ns for path in Path("data").iterdir()} == before
    other = np.array([[1.5, 1]]), [1]
    for items, why in [
        (Pairs(7), "6 items; the one given has 7"),
        (Pairs(6, (2, 3)), "f32 \\[3, 2\\]; the one given has a pair whose input is f32 \\[2, 3\\]"),
        ([(np.zeros((3, 2), np.float16), 1)] * 6, "f16"),
        ([[1, 2]] * 6, "token ids"),
        ([*(Pairs(6)[i] for i in range(5)), (np.zeros((3, 2), np.float32), 5)], "item 5 is not the one"),
        ((*other,), "float64"),
    ]:
        with pytest.raises(tiebreak.UsageError, match=why):
            tiebreak.dataset(items, "data")
    Path("data/inputs.npy").write_bytes(Path("data/inputs.npy").read_bytes()[:-1])
    with pytest.raises(tiebreak.MalformedError, match="inputs.npy has 271 bytes"):
        tiebreak.dataset(Pairs(6), "data")


def test_memory_does_not_grow_with_the_count():
    def peak(count):
        items = Pairs(count, (256,))
        items.read = type("Forgetful", (), {"append": lambda *_: None})()
        tracemalloc.start()
        tiebreak.dataset(items, f"data-{count}", progress=False)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    small, large = peak(2000), peak(8000)
    assert os.path.getsize("data-8000/inputs.npy") > 8_000_000
    assert large < small + 300_000 and large < 5_000_000, (small, large)


def test_a_full_disk_says_what_to_do_and_the_call_goes_on(monkeypatch):
    tiebreak.dataset(Pairs(10), "whole")
    write = _store.Column.write

    def full(column, begin, data):
        write(column, begin, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_store, "BLOCK", 100)
    monkeypatch.setattr(_store.Column, "write", full)
    with pytest.raises(tiebreak.UndecidedError, match="No space left.*\n.*make room"):
        tiebreak.dataset(Pairs(10), "data")
    monkeypatch.setattr(_store.Column, "write", write)
    tiebreak.dataset(Pairs(10), "data")
    assert files("data") == files("whole")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_link_in_the_folder_is_not_written_through():
    os.mkdir("data")
    Path("victim").write_text("kept")
    os.symlink("../victim", "data/inputs.npy.part")
    with pytest.raises(tiebreak.UndecidedError):
        tiebreak.dataset(Pairs(3), "data")
    assert Path("victim").read_text() == "kept"


FINE = (np.zeros(3, np.float32), 1)


@pytest.mark.parametrize(
    "items, why",
    [
        ([], "has no items"),
        ("text", "the dataset is a str"),
        ({0: FINE}, "the dataset is a dict"),
        (5, "the dataset is a int"),
        (iter([FINE]), "has no length.*\n.*count="),
        ((np.zeros((3, 2), np.float32), np.zeros(2, int)), "3 inputs and 2 labels"),
        ([FINE, (np.zeros(4, np.float32), 1)], "item 1: it is a pair whose input is f32 \\[4\\], and item 0 is .* \\[3\\]"),
        ([FINE, (np.zeros(3, np.float16), 1)], "item 1: it is a pair whose input is f16"),
        ([FINE, [1, 2, 3]], "item 1: it is token ids"),
        ([(np.zeros(3), 1)], "item 0: the input is float64.*\n.*astype\\(np.float32\\)"),
        ([(np.arange(3), np.arange(3))], "a language model's item is one sequence"),
        ([(np.arange(6).reshape(2, 3), 1)], "item 0: the input is int64 \\[2, 3\\]"),
        ([(np.arange(6, dtype=np.uint32).reshape(2, 3), 1)], "item 0: the input is uint32 \\[2, 3\\]"),
        ([(np.array([1, -1]), 1)], "a token id is -1"),
        ([(np.array([1, 2**32]), 1)], "a token id is 4294967296"),
        ([(np.zeros((0, 3), np.float32), 1)], "holds no number"),
        ([(np.zeros((1, 1, 1, 1), np.float32), 1)], "has 4 dimensions"),
        ([(np.ma.masked_array(np.zeros(3, np.float32)), 1)], "masked"),
        ([(np.zeros(3, np.float32), -100)], "the label is -100"),
        ([(np.zeros(3, np.float32), 2**32)], "has 33 bits"),
        ([(np.zeros(3, np.float32), 1.0)], "the label is a float"),
        ([(np.zeros(3, np.float32), True)], "the label is a bool"),
        ([(np.zeros(3, np.float32), np.float32(1))], "the label is a float32"),
        ([(np.zeros(3, np.float32), np.array([1]))], "one number is wanted.*\n.*one-hot"),
        ([(1e39, 1)], "which float32 does not reach"),
        ([([0.5, 1.0], 1)], "whose input is a list"),
        ([(*FINE, 3)], "a tuple of 3 parts"),
        ([{"input": 1}], "item 0: it is a dict"),
        ([[1, -1]], "a token id is -1"),
        ([[2**32, 1]], "a token id is 4294967296"),
        ([[True, 1]], "True or False"),
        ([np.zeros(0, int)], "no token ids"),
        ([[1], []], "item 1: it has no token ids"),
        ([np.zeros((2, 2), int)], "without a label"),
    ],
)
def test_what_no_file_holds_is_refused_with_a_remedy(items, why):
    with pytest.raises(tiebreak.UsageError, match=why) as error:
        tiebreak.dataset(items, "data")
    assert error.value.help and not os.path.exists("data/dataset.json")


def test_counts_iterables_and_other_folders():
    tiebreak.dataset(Pairs(10), "some", count=4)
    tiebreak.dataset(Pairs(4), "four")
    assert files("some") == files("four")
    with pytest.raises(tiebreak.UsageError, match="count is 11, and the dataset has 10"):
        tiebreak.dataset(Pairs(10), "data", count=11)
    with pytest.raises(tiebreak.UsageError, match="ended before item 3"):
        tiebreak.dataset((Pairs(9)[i] for i in range(3)), "stream", count=4)
    tiebreak.dataset((Pairs(9)[i] for i in range(4)), "stream", count=4)
    assert files("stream") == files("four")
    os.mkdir("mine")
    Path("mine/inputs.npy").write_text("precious")
    with pytest.raises(tiebreak.UsageError, match="mine has other files: inputs.npy"):
        tiebreak.dataset(Pairs(3), "mine")
    assert Path("mine/inputs.npy").read_text() == "precious"
    with pytest.raises(tiebreak.UndecidedError, match="cannot be written"):
        tiebreak.dataset(Pairs(3), "mine/inputs.npy")


def test_numbers_that_are_not_finite_are_written_with_a_warning():
    items = [(0.5, 1), (float("nan"), 2), (float("inf"), 3)]
    with pytest.warns(tiebreak.RunWarning, match="2 items hold NaN or infinities, first item 1"):
        tiebreak.dataset(items, "data")
    assert np.load("data/inputs.npy").tobytes() == np.array([0.5, np.nan, np.inf], np.float32).tobytes()


ARRAYS = st.builds(lambda shape, dtype: np.ones(shape, dtype), st.lists(st.integers(0, 3), max_size=4),
                   st.sampled_from(["f4", "f2", "u1", "f8", "i8", "?", "c8", "O", "U3", "M8[s]"]))  # fmt: skip
PARTS = st.one_of(ARRAYS, st.integers(-3, 2**70), st.floats(), st.none(), st.booleans(), st.text(max_size=2), st.binary(max_size=2),
                  st.sampled_from([np.uint8(3), np.float32(2), np.float64(2), np.int64(-5), np.bool_(True)]))  # fmt: skip


@given(st.lists(st.one_of(PARTS, st.lists(PARTS, max_size=3), st.tuples(PARTS, PARTS), st.tuples(ARRAYS, st.integers(0, 9))), max_size=4))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_odd_items_are_written_or_refused(items):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", tiebreak.RunWarning)
        try:
            data = tiebreak.dataset(items, Path(folder, "data"))
        except tiebreak.UsageError as error:
            assert error.help and not Path(folder, "data/dataset.json").exists()
            return
        if data["kind"] == "arrays":
            assert len(np.load(data["inputs"])) == len(np.load(data["labels"])) == len(items)
        else:
            assert np.load(data["path"]).tolist() == [int(number) for item in items for number in item]


@given(st.integers(0, 400), st.binary(max_size=6), st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_damage_of_a_journal_crashes(at, new, cut):
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(LookupError):
            tiebreak.dataset(Pairs(9, fails=(5, LookupError())), folder)
        journal = Path(folder, "dataset.json.part")
        text = journal.read_bytes()
        journal.write_bytes(text[:at] + new + (b"" if cut else text[at + len(new) :]))
        try:
            tiebreak.dataset(Pairs(9), folder)
        except tiebreak.Error as error:
            assert error.help
            return
        assert np.load(Path(folder, "inputs.npy"))[:, 0, 0].tolist() == [place + 0.5 for place in range(9)]
