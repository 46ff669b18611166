"""Passes of the native module, on which calls of PyTorch's modules stand: what is given is checked, and both engines have the same bits."""

import numpy as np
import pytest

from tiebreak import _native

NETWORK = """{"format": "tiebreak network 1", "micro_batch": 2, "inputs": {"name": "values", "shape": [2]}, "labels": {"shape": [2], "below": 1},
"parameters": [{"name": "x", "shape": [2, 3]}, {"name": "w", "shape": [4, 3]}], "optimizer": {"kind": "sgd", "momentum": 0},
"nodes": [{"name": "y", "operator": "matmul", "inputs": ["x", "w"]}]}"""


def test_the_native_pass_checks_what_it_is_given():
    cpu = ("cpu", 0)
    made = _native.Pass(NETWORK, ["y"], ["x"], None, cpu)
    assert made.ports() == [[("param/x", [2, 3]), ("param/w", [4, 3]), ("batch/values", [2])], [("output/0", [2, 4])]]
    zeros = [bytes(24), bytes(48), bytes(8)]
    assert made.run(zeros) == [bytes(32)]
    for wrong in (zeros[:2], [*zeros, b""], [bytes(23), *zeros[1:]], [b"", *zeros[1:]]):
        with pytest.raises(_native.Failed):
            made.run(wrong)
    x = np.arange(6, dtype="<f4").tobytes()
    gradient = _native.Pass(NETWORK, ["y", "x", "y"], ["x"], ["w", "x"], cpu)
    sums = gradient.run([x, bytes(48), bytes(8), *[np.ones(8, "<f4").tobytes(), np.ones(6, "<f4").tobytes(), np.ones(8, "<f4").tobytes()]])
    dw, dx = (np.frombuffer(data, "<f4") for data in sums)
    assert np.allclose(dw.reshape(4, 3), [[6, 10, 14]] * 4) and np.array_equal(dx, np.ones(6))
    for text, outputs, inputs, wanted, engine, why in [
        ("{", ["y"], ["x"], None, cpu, "EOF"),
        (NETWORK, ["z"], ["x"], None, cpu, "z: there is no such parameter"),
        (NETWORK, ["y"], ["z"], None, cpu, "z: there is no such parameter"),
        (NETWORK, ["y"], ["x"], ["z"], cpu, "z: there is no such parameter"),
        (NETWORK, ["x"], ["x"], None, cpu, "node y: no output depends on it"),
        (NETWORK, ["y"], ["x", "w"], None, cpu, "weight depends on the inputs, so that the logits of a sample depend on others"),
        (NETWORK, ["y"], ["x"], None, ("tpu", 0), "engine: invalid variant: tpu"),
        (NETWORK.replace("[2, 3]", "[65536, 65536]"), ["y"], ["x"], None, cpu, "parameter x: the shape"),
    ]:
        with pytest.raises(_native.Failed, match=why):
            _native.Pass(text, outputs, inputs, wanted, engine)
