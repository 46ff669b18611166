"""Train neural networks so that anybody can replay each step bit for bit, and audit such runs.

Every function does what the command `tiebreak` does, with the same bits, files and texts:

- `capture` turns a PyTorch model into a program, which `train` trains;
- `torch.compile(model, backend="tiebreak")` computes calls of a PyTorch model, with the same bits on every machine;
- `dataset` writes a PyTorch dataset to the data files of a job;
- `train` trains a job and gives a `Run`;
- `Recorder` trains in a loop of one's own, a step for each batch;
- `audit` replays a run and gives a `Report`, with a verdict if something differs;
- `evaluate` computes a model's loss and accuracy, `predict` its logits and classes, `logits` those of shorter texts too;
- `generate` writes text with a language model, and a receipt of it;
- `verify` checks a run without a replay, `compare` finds the first difference of two runs;
- `check_verdict` derives from a verdict alone whether it convicts;
- `Run` reads records, losses, metrics and states of a run;
- `new_key` makes a pair of keys.

Errors are subclasses of `Error`, and their text says what helps. Ctrl-C stops training with a checkpoint; the same call goes on later, to
the same bits.
"""

from ._audit import (
    Comparison,
    Difference,
    Report,
    Ruling,
    Verification,
    audit,
    check_verdict,
    compare,
    verify,
)
from ._batches import BatchError
from ._capture import Captured, capture
from ._compiled import register as _register
from ._dataset import dataset
from ._errors import BugError, CaptureError, Error, MalformedError, RunWarning, UndecidedError, UsageError
from ._evaluate import Evaluation, Predictions, evaluate, logits, predict
from ._generate import Answer, generate
from ._native import __version__
from ._progress import Progress
from ._recorder import Recorder
from ._run import Record, Run
from ._train import new_key, train

__all__ = [
    "Answer",
    "BatchError",
    "BugError",
    "CaptureError",
    "Captured",
    "Comparison",
    "Difference",
    "Error",
    "Evaluation",
    "MalformedError",
    "Predictions",
    "Progress",
    "Record",
    "Recorder",
    "Report",
    "Ruling",
    "Run",
    "RunWarning",
    "UndecidedError",
    "UsageError",
    "Verification",
    "__version__",
    "audit",
    "capture",
    "check_verdict",
    "compare",
    "dataset",
    "evaluate",
    "generate",
    "logits",
    "new_key",
    "predict",
    "train",
    "verify",
]

_register()
