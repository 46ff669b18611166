"""Answers and logits in Python are those of the command, and their receipts are checked by it."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import command, gpt

import tiebreak

DECODER = Path(__file__).parents[2] / "assets/networks/llama.json"
SETTINGS = {"length": 12, "seed": 2**63 + 7, "temperature": 3}
WORDS = ["--length", "12", "--seed", str(2**63 + 7), "--temperature", "3"]


def without_next(result):
    return {key: value for key, value in result.items() if key != "next"}


@pytest.fixture
def decoder(folder):
    """A run of a network file that writes bytes below 19."""
    Path("network.json").write_text(DECODER.read_text())
    command("program", "compile", "network.json", "--out", "program.bin")
    Path("small.txt").write_bytes(bytes(number * number % 19 for number in range(400)))
    job = {"steps": 2, "program": "program.bin", "network": "network.json", "schedule": {"peak": 0.1}, "data": {"kind": "bytes", "path": "small.txt"}}
    return tiebreak.train(job, out="decoder")


def test_an_answer_is_the_commands(folder):
    run = tiebreak.train(gpt(), out="run")
    mine = tiebreak.generate(run, "to be ", **SETTINGS)
    theirs = command("generate", "run", "--prompt", "to be ", *WORDS)
    untimed = lambda said: {key: value for key, value in said.items() if not key.endswith("seconds")}  # noqa: E731
    assert untimed(mine.to_dict()) == untimed(theirs) and theirs.keys() == mine.to_dict().keys()
    assert 0 < theirs["first_seconds"] <= theirs["seconds"] and repr(mine).startswith("<tiebreak.Answer: 'to be ") and str(mine) == mine.text
    assert (mine.text, mine.answer, mine.seed, mine.ended) == ("to be " + mine.answer, theirs["answer"], 2**63 + 7, False)
    assert mine.tokens == theirs["ids"] and len(mine.tokens) == 12 and bytes(mine.tokens).decode() == mine.answer
    assert (mine.receipt, mine.trace, mine.opening) == (None, None, None)
    for more in ({"device": "reference"}, {"threads": 1}, {"step": 6}):
        assert tiebreak.generate("run", "to be ", **SETTINGS, **more).tokens == mine.tokens
    greedy = tiebreak.generate(run, "to be ", length=3, temperature=0)
    assert greedy.tokens == tiebreak.generate(run, "to be ", length=3, top_k=1, seed=5).tokens
    assert tiebreak.generate(run, "to be ", length=3, top_p=1e-9, seed=6).tokens == greedy.tokens
    drawn = tiebreak.generate(run, length=90)
    assert repr(drawn) == f"<tiebreak.Answer: {drawn.text[:60] + '...'!r}>"
    assert drawn.text.startswith("\n") and tiebreak.generate(run, length=90, seed=drawn.seed).tokens == drawn.tokens
    # Each byte of the model is a token.
    ids = tiebreak.generate(run, np.frombuffer(b"to be ", np.uint8), **SETTINGS)
    assert ids.tokens == mine.tokens and ids.answer.split() == [str(token) for token in ids.tokens]
    command("export", "run", "--output", "export", "--format", "safetensors")
    assert tiebreak.generate("export/model.safetensors", "to be ", job=gpt(), **SETTINGS).tokens == mine.tokens


def test_receipts_of_answers_are_checked_by_the_command(decoder):
    prompt, check = "\t\x01\x02", ["receipt", "check", "receipt.json", "decoder", "--signer-key", "me.key.pub"]
    mine = tiebreak.generate(decoder, prompt, receipt=True, trace=True, key="me.key", **SETTINGS)
    Path("receipt.json").write_bytes(mine.receipt)
    Path("receipt.trace").write_bytes(mine.trace)
    assert command(*check, "--trace", "receipt.trace")["result"] == "matches"
    assert json.loads(mine.receipt)["answer"] == mine.tokens and mine.opening is None and mine.to_dict()["next"] == []
    again = tiebreak.generate(decoder, prompt, receipt="receipt.json", network="network.json", key=Path("me.key"), **SETTINGS)
    assert Path("receipt.json").read_bytes() == again.receipt and "receipt.json" in again.to_dict()["next"][0]["command"]
    assert tiebreak.generate(decoder, prompt, receipt="receipt.json", trace=True, key="me.key", **SETTINGS).to_dict()["next"] == []
    salted = tiebreak.generate(decoder, prompt, receipt=True, opening=True, key="me.key", **SETTINGS)
    Path("receipt.json").write_bytes(salted.receipt)
    Path("opening.json").write_bytes(salted.opening)
    assert command(*check, "--opening", "opening.json")["result"] == "matches"
    # A receipt of another answer is not that of the model.
    Path("receipt.json").write_bytes(tiebreak.generate(decoder, prompt, step=0, receipt=True, key="me.key", **SETTINGS).receipt)
    command(*check, exit_code=1)
    assert sorted(name for name in os.listdir() if "receipt" in name or "trace" in name) == ["receipt.json", "receipt.trace"]


def test_logits_are_the_commands_of_shorter_texts_too(decoder):
    tokens = (np.arange(10) * 7 % 19).reshape(2, 5)
    assert tiebreak.logits(decoder, tokens).tobytes() == tiebreak.predict(decoder, tokens).logits.tobytes()
    shorter = tiebreak.logits(decoder, tokens[:, :3], device="reference")
    np.save("tokens.npy", tokens[:, :3].astype(np.uint32))
    command("logits", "decoder", "--inputs", "tokens.npy", "--output", "theirs.npy", "--network", "network.json")
    assert shorter.shape == (2, 3, 19) and shorter.dtype == np.float32 and shorter.tobytes() == np.load("theirs.npy").tobytes()
    assert tiebreak.logits(decoder, tokens[0]).tobytes() == tiebreak.logits(decoder, tokens[:1]).tobytes()
    assert tiebreak.logits(decoder, tokens[:0]).shape == (0, 5, 19)
    assert tiebreak.logits(decoder, "tokens.npy", step=0).tobytes() != shorter.tobytes()
    assert tiebreak.logits(decoder, "tokens.npy", digits=1, network=Path("network.json")).tobytes() != shorter.tobytes()


def test_logits_of_a_job_given_as_a_dict_are_those_of_its_weights(decoder):
    tokens = np.arange(5)[None]
    job = {"steps": 1, "program": "program.bin", "network": "network.json", "schedule": {"peak": 0.1}, "data": {"kind": "bytes", "path": "small.txt"}}
    found = tiebreak.logits({**job, "init": {"weights": ["decoder/model.safetensors"]}}, tokens)
    assert found.tobytes() == tiebreak.logits(decoder, tokens).tobytes()
    assert not [name for name in os.listdir() if name.startswith(".tiebreak")]


class Raises:
    def __iter__(self):
        raise LookupError("lost")

    def __index__(self):
        raise OverflowError("too much")


def test_wrong_arguments_name_what_to_give(decoder):
    tokens = [[1, 2, 3]]
    for call, why in [
        (lambda: tiebreak.generate(decoder, 3), "as a list of token ids"),
        (lambda: tiebreak.generate(decoder, []), "prompt has no token ids"),
        (lambda: tiebreak.generate(decoder, [1.5]), "prompt[0] is 1.5"),
        (lambda: tiebreak.generate(decoder, [19]), "has number 19"),
        *((lambda wrong=wrong: tiebreak.generate(decoder, wrong), f"prompt is a {kind}\nhelp: give the prompt as a str") for wrong, kind in (
            (b"12", "bytes"), (bytearray(b"1"), "bytearray"), (memoryview(b"1"), "memoryview"), ({1, 2}, "set"), ({1: 2}, "dict"))),
        (lambda: tiebreak.generate(decoder, np.ones((1, 2), int)), "prompt is an array [1, 2] of int64"),
        (lambda: tiebreak.generate(decoder, np.ones((3, 1), int)), "prompt is an array [3, 1] of int64"),
        (lambda: tiebreak.generate(decoder, np.array(3)), "prompt is an array [] of int64"),
        (lambda: tiebreak.generate(decoder, np.ones(2, bool)), "prompt is an array [2] of bool"),
        (lambda: tiebreak.generate(decoder, np.ones(2)), "prompt is an array [2] of float64"),
        (lambda: tiebreak.generate(decoder, Raises()), "prompt is a Raises, which gives no ids: lost"),
        (lambda: tiebreak.generate(decoder, [1, Raises()]), "prompt[1] is a Raises"),
        (lambda: tiebreak.generate(decoder, [[1, 2]]), "prompt[0] is a list"),
        (lambda: tiebreak.generate(decoder, [1, True]), "prompt[1] is True"),
        (lambda: tiebreak.generate(decoder, np.array([2, -1])), "prompt[1] is -1"),
        (lambda: tiebreak.generate(decoder, [2**32]), "prompt[0] is 4294967296"),
        (lambda: tiebreak.generate(decoder, "z"), "has number 122"),
        (lambda: tiebreak.generate(decoder, "\0"), "prompt is '\\x00'"),
        (lambda: tiebreak.generate(decoder, [1], receipt=True), "token ids alone name none"),
        (lambda: tiebreak.generate(decoder, "\1", trace=True), "trace is given, and no receipt is asked for\nhelp: give receipt too"),
        (lambda: tiebreak.generate(decoder, "\1", opening="here"), "opening is given"),
        *((lambda name=name: tiebreak.generate(decoder, [1], **{name: "file"}), f"{name} is given, and the prompt is token ids") for name in ("receipt", "trace", "opening", "key")),
        (lambda: tiebreak.generate(decoder, "\1", receipt=3), "receipt is no path"),
        (lambda: tiebreak.generate(decoder, "\1", key="me.key"), "give receipt too"),
        (lambda: tiebreak.generate(decoder, "\1", temperature=float("nan")), "temperature is nan"),
        (lambda: tiebreak.generate(decoder, "\1", temperature=-1), "--temperature -1"),
        (lambda: tiebreak.generate(decoder, "\1", temperature=0, top_k=3), "change nothing"),
        (lambda: tiebreak.generate(decoder, "\1", temperature=0, seed=3), "seed changes nothing"),
        (lambda: tiebreak.generate(decoder, "\1", top_k=0), "top_k is 0"),
        (lambda: tiebreak.generate(decoder, "\1", top_k=2**32), "top_k is 4294967296"),
        (lambda: tiebreak.generate(decoder, "\1", length=2**32), "length is 4294967296"),
        (lambda: tiebreak.generate(decoder, "\1", top_p=0), "--top-p 0"),
        (lambda: tiebreak.generate(decoder, "\1", seed=2**64), "seed is 18446744073709551616"),
        (lambda: tiebreak.generate(decoder, "\1", seed=True), "seed is True"),
        (lambda: tiebreak.generate(decoder, "\1", length=-1), "length is -1"),
        (lambda: tiebreak.generate(decoder, "\1", device="tpu"), "device is 'tpu'"),
        (lambda: tiebreak.generate("nowhere", "\1"), "nowhere"),
        (lambda: tiebreak.logits(decoder, tokens, digits=5), "digits is 5"),
        (lambda: tiebreak.logits(decoder, tokens, step=2**32), "step is"),
        (lambda: tiebreak.logits(decoder, [[-1]]), "numbers from -1"),
        (lambda: tiebreak.logits(decoder, np.ones((1, 6), np.int64)), "inputs: it holds U32 [1, 6]; the model takes U32 [samples, 1 to 5 positions]"),
        (lambda: tiebreak.predict(decoder, np.ones((1, 6), np.int64)), "inputs: "),
    ]:
        with pytest.raises(tiebreak.UsageError) as error:
            call()
        assert why in str(error.value), (why, error.value)
    np.save("tokens.npy", np.ones((1, 6), np.uint32))
    with pytest.raises(tiebreak.MalformedError, match="tokens.npy: .*the model takes U32 \\[samples, 1 to 5 positions\\]"):
        tiebreak.logits(decoder, "tokens.npy")


def test_models_that_write_no_text_and_those_of_a_tokenizer_say_what_to_do(folder):
    draw = np.random.default_rng(3)
    data = tiebreak.dataset((draw.standard_normal((6, 4), dtype=np.float32), np.arange(6) % 3), "pairs")
    job = {**gpt(steps=1, commit={}), "model": {"kind": "mlp", "inputs": 4, "hidden": [5], "classes": 3}, "data": data}
    with pytest.raises(tiebreak.UsageError, match="only decoders write text"):
        tiebreak.generate(tiebreak.train({key: value for key, value in job.items() if key != "commit"}, out="mlp"), "a")
    np.save("tokens.npy", (np.arange(400) % 300).astype(np.uint16))
    model = {**gpt()["model"], "vocabulary": 300}
    run = tiebreak.train(gpt(model=model, data={"kind": "tokens", "path": "tokens.npy", "dtype": "u16"}), out="tokens")
    with pytest.raises(tiebreak.UsageError, match="no tokenizer is kept with it\nhelp: give the prompt as a list of token ids"):
        tiebreak.generate(run, "a")
    assert len(tiebreak.generate(run, [7, 299], length=5).tokens) == 5


def test_an_exception_or_a_signal_ends_an_answer(decoder):
    def stop(progress):
        assert (progress.unit, progress.total) == ("tokens", 10**8)
        raise LookupError("enough")

    def ends(call, error):
        with pytest.raises(error):
            call()
        time.sleep(0.2)
        before = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before < 0.1

    endless = lambda **more: tiebreak.generate(decoder, "\1", length=10**8, threads=1, **more)  # noqa: E731
    ends(lambda: endless(progress=stop), LookupError)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    ends(endless, KeyboardInterrupt)
    many = np.ones((1 << 18, 5), np.int64)
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    ends(lambda: tiebreak.logits(decoder, many, threads=1), KeyboardInterrupt)
