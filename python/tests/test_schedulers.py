"""Schedulers of PyTorch: a run has their rates, and what has no counterpart is refused."""

import numpy as np
import pytest
from captures import imported_transformers, mean_loss, needs_torch, nn, torch

import tiebreak


def schedulers():
    """Schedulers that a schedule has exactly in a run of 50 steps."""
    from torch.optim import lr_scheduler as all_of

    return {
        "constant": lambda o: all_of.ConstantLR(o, factor=1.0),
        "none": lambda o: all_of.LinearLR(o, 1.0, 1.0),
        "warm-up": lambda o: all_of.LinearLR(o, 1 / 8, total_iters=7),
        "line": lambda o: all_of.LinearLR(o, 1.0, 0.25, total_iters=49),
        "polynomial": lambda o: all_of.PolynomialLR(o, total_iters=49),
        "cosine": lambda o: all_of.CosineAnnealingLR(o, 49),
        "cosine to a floor": lambda o: all_of.CosineAnnealingLR(o, 49, eta_min=0.003),
        "steps": lambda o: all_of.StepLR(o, 7, 0.3),
        "milestones": lambda o: all_of.MultiStepLR(o, [30, 4, 49, 90], 0.1),
        "exponential": lambda o: all_of.ExponentialLR(o, 0.875),
        "warm-up, then cosine": lambda o: all_of.SequentialLR(
            o, [all_of.LinearLR(o, 1 / 6, total_iters=5), all_of.CosineAnnealingLR(o, 44, eta_min=0.003)], [5]
        ),
        "warm-up, then line": lambda o: all_of.SequentialLR(o, [all_of.LinearLR(o, 1 / 11, total_iters=10), all_of.PolynomialLR(o, 39)], [10]),
        "warm-up, then line to a share": lambda o: all_of.SequentialLR(
            o, [all_of.LinearLR(o, 1 / 11, total_iters=10), all_of.LinearLR(o, 1, 0.5, total_iters=39)], [10]
        ),
    }


def scheduled(make, **more):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **more)
    return model, optimizer, make(optimizer)


def rates(run, optimizer, scheduler):
    """The rates of a run's 50 steps, and those of the scheduler."""
    theirs = []
    for _ in range(50):
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return [record.learning_rate for record in run.records if record.kind == "step"], theirs


@needs_torch
def test_a_run_has_the_rates_of_the_scheduler(folder):
    data = tiebreak.dataset((np.ones((4, 4), np.float32), np.arange(4) % 3), "data")
    for name, make in schedulers().items():
        model, optimizer, scheduler = scheduled(make)
        batch = torch.zeros(2, 4), torch.zeros(2).long()
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out=f"captured-{name}", scheduler=scheduler)
        run = tiebreak.train(captured.job(data, 50), out=f"run-{name}")
        ours, theirs = rates(run, optimizer, scheduler)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-15, err_msg=name)
        assert name in ("constant", "none") or len(set(ours)) > 1, name


def of_transformers(name, *numbers):
    """A schedule of transformers, whose function counts from step 1."""

    def made(optimizer):
        (function,) = getattr(imported_transformers(), name)(optimizer, *numbers).lr_lambdas
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: function(step + 1))

    return made


def functions():
    """Schedulers of functions that a schedule of 50 steps has, with its kind and its warm-up."""
    from torch.optim.lr_scheduler import LambdaLR

    transformers = imported_transformers()
    return {
        "as it comes, constant": (lambda o: transformers.get_constant_schedule_with_warmup(o, 0), "constant", 1),
        "as it comes, line": (lambda o: transformers.get_linear_schedule_with_warmup(o, 0, 50), "linear", 1),
        "as it comes, cosine": (lambda o: transformers.get_cosine_schedule_with_warmup(o, 0, 49), "cosine", 1),
        "warm-up": (of_transformers("get_constant_schedule_with_warmup", 7), "constant", 7),
        "line": (of_transformers("get_linear_schedule_with_warmup", 7, 50), "linear", 7),
        "line of a longer run": (of_transformers("get_linear_schedule_with_warmup", 7, 90), "linear", 7),
        "cosine": (of_transformers("get_cosine_schedule_with_warmup", 7, 50), "cosine", 7),
        "cosine to a share": (of_transformers("get_cosine_with_min_lr_schedule_with_warmup", 7, 50, 0.5, -1, None, 0.25), "cosine", 7),
        "cosine at once": (of_transformers("get_cosine_schedule_with_warmup", 0, 50), "cosine", 0),
        "line at once": (of_transformers("get_linear_schedule_with_warmup", 0, 50), "linear", 1),
        "own": (lambda o: LambdaLR(o, lambda step: 2.0 * min(1.0, (step + 1) / 5)), "constant", 5),
    }


@needs_torch
def test_functions_are_recognised_by_their_numbers(folder):
    data = tiebreak.dataset((np.ones((4, 4), np.float32), np.arange(4) % 3), "data")
    batch = torch.zeros(2, 4), torch.zeros(2).long()
    for name, (make, kind, warmup) in functions().items():
        model, optimizer, scheduler = scheduled(make)
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out=f"captured-{name}", scheduler=scheduler)
        job = captured.job(data, 50)
        assert (job["schedule"]["kind"], job["schedule"]["warmup"]) == (kind, warmup), (name, job["schedule"])
        run = tiebreak.train(job, out=f"run-{name}")
        ours, theirs = rates(run, optimizer, scheduler)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-13, err_msg=name)


@needs_torch
def test_functions_of_other_numbers_are_refused(folder):
    from torch.optim.lr_scheduler import LambdaLR

    batch = torch.zeros(2, 4), torch.zeros(2).long()
    transformers = imported_transformers()
    exact = transformers.get_cosine_schedule_with_warmup(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), 0, 49).lr_lambdas[0]
    later = "f\\(step \\+ 1\\)"

    def failing(step):
        return 1.0 if step == 0 else [][step]

    for make, why in [
        # The first step of a warm-up has the rate 0 there.
        (lambda o: transformers.get_constant_schedule_with_warmup(o, 7), f"its function is 0, 0.142857, .. 1 in 50 steps\n.*{later}"),
        (lambda o: transformers.get_linear_schedule_with_warmup(o, 7, 50), later),
        (lambda o: transformers.get_cosine_schedule_with_warmup(o, 7, 50), later),
        (lambda o: transformers.get_cosine_schedule_with_warmup(o, 0, 50), later),
        (of_transformers("get_cosine_schedule_with_warmup", 7, 50, 1.5), "no schedule of the contract.*\nhelp: give captured.job a `schedule`"),
        (of_transformers("get_cosine_schedule_with_warmup", 7, 60), "no schedule of the contract"),
        (of_transformers("get_linear_schedule_with_warmup", 7, 40), "no schedule of the contract"),
        (of_transformers("get_polynomial_decay_schedule_with_warmup", 7, 50, 1e-7, 2.0), "no schedule of the contract"),
        (lambda o: LambdaLR(o, lambda step: exact(step) * (1 + 3e-6 * (step == 30))), "no schedule of the contract"),
        (lambda o: LambdaLR(o, lambda step: 0.0), "no schedule of the contract"),
        (lambda o: LambdaLR(o, lambda step: 1.0 - step / 20), "below 0"),
        (lambda o: LambdaLR(o, lambda step: float("nan") if step == 9 else 1.0), "not finite"),
        (lambda o: LambdaLR(o, failing), "LambdaLR's function fails: IndexError"),
    ]:
        model, optimizer, scheduler = scheduled(make)
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job({"kind": "arrays"}, 50)
    with pytest.raises(tiebreak.UsageError, match="at most 1000000 steps"):
        captured.job({"kind": "arrays"}, 10**6 + 1)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}], lr=0.05)
    two = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.0 if step < 9 else 0.5])
    captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=two)
    with pytest.raises(tiebreak.UsageError, match="several schedules"):
        captured.job({"kind": "arrays"}, 50)


@needs_torch
def test_schedulers_without_a_counterpart_are_refused(folder):
    from torch.optim import lr_scheduler as all_of

    batch = torch.zeros(2, 4), torch.zeros(2).long()
    warm = lambda o, n: all_of.LinearLR(o, 1 / (n + 1), total_iters=n)  # noqa: E731
    for make, why in [
        (lambda o: all_of.MultiplicativeLR(o, lambda step: 1.0), "the scheduler is a MultiplicativeLR: use one of ConstantLR"),
        (lambda o: all_of.OneCycleLR(o, 0.1, 50), "the scheduler is a OneCycleLR"),
        (lambda o: all_of.CosineAnnealingWarmRestarts(o, 10), "CosineAnnealingWarmRestarts"),
        (lambda o: type("Own", (all_of.StepLR,), {})(o, 3), "the scheduler is a Own"),
        (lambda o: all_of.ConstantLR(o), "ConstantLR has factor 0.333"),
        (lambda o: all_of.LinearLR(o), "start_factor=1 / \\(total_iters \\+ 1\\) = 1 / 6"),
        (lambda o: all_of.LinearLR(o, 0.5, 0.25), "start_factor 0.5 and end_factor 0.25"),
        (lambda o: all_of.PolynomialLR(o, 49, power=2.0), "power 2.0"),
        (lambda o: all_of.CosineAnnealingLR(o, 49, eta_min=0.1), "above the learning rate"),
        (lambda o: all_of.StepLR(o, 3, 1.5), "gamma 1.5"),
        (lambda o: all_of.MultiStepLR(o, [3, 3]), "the milestone 3 several times"),
        (lambda o: all_of.MultiStepLR(o, [0, 3]), "a milestone is 0"),
        (lambda o: all_of.SequentialLR(o, [warm(o, 5), all_of.CosineAnnealingLR(o, 44)], [6]), "milestones \\[6\\]"),
        (lambda o: all_of.SequentialLR(o, [warm(o, 5), all_of.StepLR(o, 4)], [5]), "LinearLR, then StepLR"),
        (lambda o: None, "a scheduler changes the optimizer's learning rate"),
        (lambda o: all_of.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters()), 3), "another optimizer"),
    ]:
        model, optimizer, scheduler = scheduled(make)
        if scheduler is None:
            all_of.StepLR(optimizer, 3)
        with pytest.raises(tiebreak.CaptureError, match=why):
            tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    model, optimizer, scheduler = scheduled(lambda o: all_of.StepLR(o, 3))
    optimizer.step()
    scheduler.step()
    with pytest.raises(tiebreak.CaptureError, match="the scheduler has taken steps"):
        tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    model, optimizer, scheduler = scheduled(lambda o: all_of.StepLR(o, 3))
    optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(tiebreak.CaptureError, match="learning rates changed after"):
        tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
    groups = torch.optim.SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}], lr=0.05)
    with pytest.raises(tiebreak.CaptureError, match="several learning rates"):
        tiebreak.capture(model, mean_loss, groups, batch, out="captured", scheduler=all_of.CosineAnnealingLR(groups, 49, eta_min=0.01))
    for make, why in [
        (lambda o: all_of.CosineAnnealingLR(o, 50), "T_max=50, and a run of 50 steps has 49 after.*\n.*steps=51, or T_max=49"),
        (lambda o: all_of.LinearLR(o, 1.0, 0.5, total_iters=20), "total_iters=20.*\n.*steps=21"),
        (lambda o: all_of.ExponentialLR(o, 0.9), "after 49 falls.*\n.*give gamma=0.89999997"),
    ]:
        model, optimizer, scheduler = scheduled(make)
        captured = tiebreak.capture(model, mean_loss, optimizer, batch, out="captured", scheduler=scheduler)
        with pytest.raises(tiebreak.UsageError, match=why):
            captured.job({"kind": "arrays"}, 50)
    with pytest.raises(tiebreak.UsageError, match="give one of them"):
        captured.job({"kind": "arrays"}, 50, schedule={"peak": 0.1})
