"""PyTorch's products in the logged profile: audits match, lies are caught, and a run goes on behind a kernel that fails."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from captures import mean_loss, needs_torch, nn, torch
from conftest import gpt
from test_capture import decoder

import tiebreak
from tiebreak import _kernels

GRIDS = [{}, {"bits": 32}]


def perceptron():
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 3)), (4, 6), 3


def gpt2():
    return decoder(), (4, 5), 19


def convolutions():
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6, 3)), (4, 3, 8, 8), 3


def captured(model, rounding, **more):
    """A captured model with the table of its data files."""
    torch.manual_seed(5)
    model, shape, classes = model()
    draw = np.random.default_rng(5)
    if len(shape) == 2 and classes == 19:
        tokens = draw.integers(0, classes, 400, dtype=np.uint16)
        np.save("tokens.npy", tokens)
        data = {"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}
        batch = torch.zeros(shape).long(), torch.zeros(shape).long()
    else:
        data = tiebreak.dataset((draw.standard_normal((24, *shape[1:]), dtype=np.float32), draw.integers(0, classes, 24)), "data/")
        batch = torch.zeros(shape), torch.zeros(shape[0]).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", rounding=rounding, **more), data


def states(run):
    return [record.state for record in run.records]


@needs_torch
@pytest.mark.parametrize("rounding", GRIDS, ids=["bfloat16", "binary32"])
@pytest.mark.parametrize("model", [perceptron, gpt2, convolutions])
def test_captured_models_train_by_pytorchs_products_and_are_audited(folder, model, rounding):
    captured_model, data = captured(model, rounding, micro_batches=2)
    job = captured_model.job(data, 6)
    ours = tiebreak.train(job, out="ours")
    theirs = tiebreak.train(job, out="theirs", native="torch", native_device="cpu")
    for run in ours, theirs:
        report = tiebreak.audit(run, sample=1.0)
        assert report.matches and report.differences == [], report
    # Where no decision differs, no bit does. On binary32's grid kernels hardly ever round apart.
    logs = [[Path(run, f"logs/step-{step:09}").read_bytes() for step in range(1, 7)] for run in ("ours", "theirs")]
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*logs)))
    assert states(ours)[: same + 1] == states(theirs)[: same + 1]
    if rounding:
        assert states(ours) == states(theirs)


@needs_torch
def test_losses_are_those_of_pytorch(folder):
    """The captured perceptron and PyTorch's own loop, from the same weights on the same batch: binary32 beside its grid."""
    torch.manual_seed(5)
    model, shape, _ = perceptron()
    inputs, labels = torch.randn(shape), torch.tensor([0, 2, 1, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    captured_model = tiebreak.capture(model, mean_loss, optimizer, (inputs, labels), out="captured", rounding={"bits": 32})
    with tiebreak.Recorder(captured_model, out="run", steps=4, native="torch") as recorder:
        found = [recorder.step((inputs, labels)) for _ in range(4)]
    due = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = mean_loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
        due.append(loss.item())
    np.testing.assert_allclose(found, due, rtol=1e-5)


@needs_torch
@pytest.mark.parametrize("rounding", GRIDS, ids=["bfloat16", "binary32"])
def test_a_recording_by_pytorch_goes_on_to_the_same_run(folder, monkeypatch, rounding):
    own, calls = _kernels.TorchKernel.multiply, itertools.count()
    monkeypatch.setattr(_kernels.TorchKernel, "multiply", lambda *given: (next(calls), own(*given)))
    captured_model, _ = captured(perceptron, rounding)
    batches = [(torch.randn(4, 6), torch.arange(4) % 3) for _ in range(5)]

    def record(out, stop):
        with tiebreak.Recorder(captured_model, out=out, steps=5, native="torch", key="me.key", checkpoint={"every": 2}) as recorder:
            for batch in batches[recorder.done : stop]:
                recorder.step(batch)
        return recorder.run

    whole = record("whole", 5)
    # Two layers: two products forward, and three of gradients, in each step.
    assert next(calls) == 25
    with pytest.raises(tiebreak.UndecidedError):
        record("run", 3)
    run = record("run", 5)
    assert states(run) == states(whole) and tiebreak.audit(run, sample=1.0).matches
    for step in range(1, 6):
        name = f"logs/step-{step:09}"
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


@needs_torch
@pytest.mark.parametrize("rounding", GRIDS, ids=["bfloat16", "binary32"])
def test_a_kernel_that_lies_is_caught(folder, monkeypatch, rounding):
    own, calls = _kernels.TorchKernel.multiply, itertools.count()

    def lies(self, a, b, sums):
        own(self, a, b, sums)
        if next(calls) == 20:
            # The least element: a thousandth is more than a step of the grid there.
            sums.view(-1)[sums.abs().argmin()] += 1e-3

    monkeypatch.setattr(_kernels.TorchKernel, "multiply", lies)
    captured_model, data = captured(perceptron, rounding)
    run = tiebreak.train(captured_model.job(data, 6, commit={"granularity": "operator"}), out="run", native="torch")
    report = tiebreak.audit(run, sample=1.0)
    assert next(calls) > 21 and not report.matches


class Odd:
    """What a kernel does in place of a product in its thirtieth call."""

    def raises(self, a, b, sums):
        raise ValueError("no such\nproduct")

    def gives_too_few(self, a, b, sums):
        sums.copy_(torch.matmul(a, b)[..., :-1])

    def leaves_them(self, a, b, sums):
        pass

    def gives_nan(self, a, b, sums):
        sums.fill_(float("nan"))


@needs_torch
@pytest.mark.parametrize(
    "odd, why",
    [
        (Odd.raises, r"failed in \S+: ValueError: no such product .*test_torch_native.py, line"),
        (Odd.gives_too_few, r"failed in \S+: RuntimeError: .*must match"),
        (Odd.leaves_them, r"failed in \S+: it left element 0 of \d+ as it was"),
        (Odd.gives_nan, "of a native product is not finite"),
    ],
)
@pytest.mark.parametrize("rounding", GRIDS, ids=["bfloat16", "binary32"])
def test_a_run_goes_on_behind_a_kernel_that_fails(folder, monkeypatch, odd, why, rounding):
    own, calls = _kernels.TorchKernel.multiply, itertools.count()
    job = gpt(rounding=rounding)
    whole = tiebreak.train(job, out="whole", native="torch")
    monkeypatch.setattr(_kernels.TorchKernel, "multiply", lambda *given: (odd if next(calls) == 200 else own)(*given))
    with pytest.raises(tiebreak.UndecidedError, match="(?s)" + why) as error:
        tiebreak.train(job, out="cut", native="torch")
    assert "PyTorch" in str(error.value) or odd is Odd.gives_nan
    assert next(calls) == 201
    run = tiebreak.train(job, out="cut", native="torch")
    assert states(run) == states(whole) and tiebreak.audit(run, sample=1.0).matches


# A kernel that leaves the interpreter's lock while it computes, and two signals.
INTERRUPTED = """
import os, signal, threading, time
import tiebreak
from conftest import gpt
from tiebreak import _kernels

own, begun = _kernels.TorchKernel.multiply, threading.Event()
def slow(*given):
    own(*given)
    begun.set()
    time.sleep(0.02)
_kernels.TorchKernel.multiply = slow
def interrupt():
    begun.wait()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt).start()
try:
    tiebreak.train(gpt(steps=1000, checkpoint={"every": 1000}, rounding={}), out="run", native="torch")
except KeyboardInterrupt:
    print("interrupted")
"""


@needs_torch
def test_two_signals_wait_for_the_step(folder):
    tests = str(Path(__file__).parent)
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r}){INTERRUPTED}"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
    stopped = tiebreak.Run("run")
    assert stopped.checkpoints[-1] == len(stopped.records) - 1 >= 1, "the step at hand was finished, with a checkpoint"


@needs_torch
@pytest.mark.parametrize("views", [(1, 1), (3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("is_double", [False, True])
def test_operands_are_read_where_they_lie(views, is_double):
    """Rows that are columns of their tensor, an offset, and an axis that repeats."""
    kernel = _kernels.TorchKernel("cpu")
    (outer, inner), m, n, k = views, 4, 5, 6
    draw = np.random.default_rng(1)
    left = draw.standard_normal((outer, k, inner, m)).astype(np.float32)
    right = draw.standard_normal(3 + outer * n * k).astype(np.float32)
    sums = np.zeros((outer, inner, m, n), np.float64 if is_double else np.float32)
    a = (left.ctypes.data, left.size, 0, [outer, inner, m, k], [k * inner * m, m, 1, inner * m])
    b = (right.ctypes.data, right.size, 3, [outer, inner, n, k], [n * k, 0, k, 1])
    kernel(a, b, (sums.ctypes.data, is_double))
    due = np.einsum("okim,onk->oimn", left.astype(np.float64), right[3:].reshape(outer, n, k).astype(np.float64))
    np.testing.assert_allclose(sums, due, rtol=0, atol=1e-14 if is_double else 1e-5)


@needs_torch
@pytest.mark.parametrize(
    "given, why",
    [
        (dict(native="torch", native_device="meta"), "native_device is 'meta'"),
        (dict(native="torch", native_device="nonsense"), "native_device is 'nonsense'"),
        (dict(native="torch", native_device=3.5), "native_device is 3.5"),
        (dict(native="torch", device="reference"), "beside device='reference'"),
        (dict(native="gemm", native_device="cpu"), "native_device is 'cpu'"),
        (dict(native="tensorflow"), "tensorflow"),
        (dict(native=3), "native is 3"),
        (dict(native="torch", rounding=None), "the job is of the exact one"),
        (dict(native="gemm", rounding=None), "the job is of the exact one"),
    ],
)
def test_wrong_kernels_are_refused_before_anything_is_written(folder, given, why):
    given = {"rounding": {}, **given}
    rounding = given.pop("rounding")
    job = gpt() if rounding is None else gpt(rounding=rounding)
    with pytest.raises(tiebreak.UsageError, match=why):
        tiebreak.train(job, out="run", **given)
    assert not Path("run").exists()


@needs_torch
@pytest.mark.skipif(torch is not None and torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(folder):
    with pytest.raises(tiebreak.UsageError, match="PyTorch finds no CUDA device"):
        tiebreak.train(gpt(rounding={}), out="run", native="torch", native_device="cuda")


@needs_torch
def test_a_kernel_by_name_trains_and_an_exact_recording_refuses_one(folder):
    run = tiebreak.train(gpt(), out="run", profile="logged", native="interleaved-fma")
    assert tiebreak.audit(run, sample=1.0).matches
    captured_model, _ = captured(perceptron, None)
    with pytest.raises(tiebreak.UsageError, match="--native is for training in the logged profile"):
        with tiebreak.Recorder(captured_model, out="recorded", steps=2, native="torch"):
            pass


def test_the_grid_of_a_captured_model_is_checked(folder):
    from tiebreak._capture import _grid

    assert [_grid(table) for table in ({}, {"bits": 32}, {"preset": "paper"}, {"floor": 0, "threshold": 64})] == [
        {"bits": 16, "floor": 14},
        {"bits": 32, "floor": 0},
        {"bits": 32, "floor": 0},
        {"bits": 16, "floor": 0},
    ]
    for wrong in [16, {"bits": 31}, {"bits": 17}, {"bits": "16"}, {"bits": 32, "floor": 14}, {"floor": 3}, {"floor": 41}, {"floor": -1}]:
        with pytest.raises(tiebreak.UsageError):
            _grid(wrong)
