"""What the tests share: the command, a key, small jobs, and runs whose trainers cheat."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

import tiebreak

COMMAND = os.environ["TIEBREAK"]


def command(*words, exit_code=0):
    """Runs the command line with --json: its result."""
    done = subprocess.run([COMMAND, "--json", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == exit_code, (words, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else None


def gpt(**more):
    """A job of a GPT that trains in a moment."""
    return {
        "steps": 6,
        "model": {"kind": "gpt", "vocabulary": 128, "context": 12, "layers": 2, "heads": 2, "width": 16, "dropout": 0.1},
        "data": {"kind": "bytes", "path": "text.txt"},
        "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
        "schedule": {"peak": 1e-2},
        "batch": {"micro_batch": 2, "micro_batches": 2},
        "commit": {"granularity": "operator"},
        "checkpoint": {"every": 2},
        **more,
    }


def residual(**more):
    """A job of a residual network with batch normalisations, in torchvision's layout."""
    return {
        "steps": 3,
        "model": {"kind": "resnet", "height": 32, "width": 32, "planes": 3, "stages": [2, 4], "blocks": 1, "classes": 10,
                  "norm": "batch", "order": "post"},
        "data": {"kind": "cifar10", "path": "images.bin"},
        "optimizer": {"kind": "sgd", "momentum": 0.9, "weight_decay": 5e-4},
        "schedule": {"peak": 1e-2},
        "batch": {"micro_batch": 2},
        **more,
    }


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """A shell starts what runs in its background with Ctrl-C ignored, and Python keeps that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with data, a key, and the job of `gpt` as a file; the current one."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("to be or not to be, that is the question: " * 8)
    draw = random.Random(1)
    Path("images.bin").write_bytes(b"".join(bytes([draw.randrange(10)]) + draw.randbytes(3072) for _ in range(8)))
    tiebreak.new_key("me.key", "me.example.org")
    return tmp_path


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """The runs of `tiebreak selftest --hostile`."""
    folder = tmp_path_factory.mktemp("hostile") / "cases"
    command("selftest", "--hostile", folder)
    return folder
