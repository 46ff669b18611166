#!/usr/bin/env python3
"""A served model by OpenAI's Python library: answers and chats of clients at once, whole and streamed, against `generate`.

    pip install openai==3.57.0
    python3 benches/served.py --tiebreak target/release/tiebreak

Trains a small model, serves it, and asks it by several clients at once. Each receipt has to be the file that
`tiebreak generate --receipt` writes with the same settings. Ends with status 1 if one is not. Chats need a command
of a build with `--features tokenizer`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import openai

JOB = """steps = 2
model = { kind = "gpt", vocabulary = 128, context = 192, layers = 4, heads = 4, width = 64, init_std = 0.2 }
data = { kind = "bytes", path = "text.txt" }
batch = { micro_batch = 2, micro_batches = 1 }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.01 }
"""
TEXT = "The quick brown fox jumps over the lazy dog. "
CLIENTS = 8


class Server:
    """A served run, which ends with the block."""

    def __init__(self, tiebreak, run, *options):
        command = [tiebreak, "serve-model", run, "--listen", "127.0.0.1:0", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = []
        while not lines or lines[-1] != "}\n":
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit("the server does not start")
            lines.append(line)
        self.said = json.loads("".join(lines))

    def client(self):
        return openai.OpenAI(base_url=self.said["address"] + "/v1", api_key="none", max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.status = self.process.wait(60)


def settings(number):
    """Settings of a request, as fields of the API and as options of `generate`."""
    draw = random.Random(number)
    prompt = (TEXT * 3)[: draw.randint(1, 100)]
    length, temperature, seed = draw.randint(1, 90), draw.choice([0, 0.5, 1, 2]), draw.getrandbits(48)
    fields = {"prompt": prompt, "max_tokens": length, "temperature": temperature, "seed": seed}
    options = ["--prompt", prompt, "--length", length, "--temperature", temperature, "--seed", seed]
    if temperature and draw.random() < 0.5:
        fields["top_p"] = 0.75
        fields["extra_body"] = {"top_k": 30}
        options += ["--top-p", "0.75", "--top-k", "30"]
    return fields, [str(option) for option in options]


def ask(client, model, number):
    """The text, the receipt and the number of tokens of an answer; every second one is streamed."""
    fields, _ = settings(number)
    if number % 2:
        answer = client.completions.create(model=model, **fields)
        return answer.choices[0].text, answer.tiebreak_receipt, answer.usage.completion_tokens
    text, receipt, tokens = "", None, None
    stream = client.completions.create(model=model, stream=True, stream_options={"include_usage": True}, **fields)
    for event in stream:
        text += "".join(choice.text for choice in event.choices)
        receipt = getattr(event, "tiebreak_receipt", None) or receipt
        tokens = event.usage.completion_tokens if event.usage else tokens
    return text, receipt, tokens


def refusals(client, model):
    """Errors that the library raises by their classes."""
    for error, fields in [
        (openai.BadRequestError, {"prompt": "a", "stop": "."}),
        (openai.BadRequestError, {"prompt": "a", "max_tokens": 1000}),
        (openai.NotFoundError, {"prompt": "a", "model": "other"}),
    ]:
        try:
            client.completions.create(**{"model": model, **fields})
            raise SystemExit(f"{fields} was answered")
        except error:
            pass
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "a"}])
        raise SystemExit("a chat was answered")
    except openai.NotFoundError as error:
        assert "chats are not served" in str(error), error


TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def tokenizer(folder):
    """A tokenizer over bytes whose ids of ASCII texts are below 128, two special tokens included."""
    shown = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte]
    others = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    order = sorted(letters, key=lambda byte: (byte not in (10, 32) and not 33 <= byte <= 126, byte))
    ids = {letters[byte]: at if at < 96 else at + 2 for at, byte in enumerate(order)}
    files = {
        "vocab.json": json.dumps(ids | {"<|im_start|>": 96, "<|im_end|>": 97}),
        "merges.txt": "#version: 0.2\n",
        "added_tokens.json": json.dumps({"<|im_start|>": 96, "<|im_end|>": 97}),
        "chat_template.jinja": TEMPLATE,
        "generation_config.json": json.dumps({"eos_token_id": [97, 1]}),
    }
    os.mkdir(folder)
    for name, text in files.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def chat(client, model, number):
    """The answer of a chat, its receipt and the reason of its end; every second one is streamed."""
    messages, fields = chats(number)
    if number % 2:
        answer = client.chat.completions.create(model=model, messages=messages, **fields)
        choice = answer.choices[0]
        assert (choice.message.role, answer.object) == ("assistant", "chat.completion"), answer
        return choice.message.content, answer.tiebreak_receipt, choice.finish_reason
    text, receipt, reason = "", None, None
    for event in client.chat.completions.create(model=model, messages=messages, stream=True, **fields):
        assert event.object == "chat.completion.chunk", event
        text += "".join(choice.delta.content or "" for choice in event.choices)
        reason = event.choices[0].finish_reason or reason
        receipt = getattr(event, "tiebreak_receipt", None) or receipt
    return text, receipt, reason


def chats(number):
    """The messages and the settings of a chat."""
    draw = random.Random(number)
    texts = [(TEXT * 2)[: draw.randint(1, 30)] for _ in range(draw.choice([1, 3]))]
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    fields = {"max_tokens": draw.randint(1, 40), "temperature": draw.choice([0, 0.5, 1]), "seed": draw.getrandbits(48)}
    return messages, fields


def ask_chats(tiebreak, folder, call, count):
    """Asks chats at once, and compares each receipt with that of `generate --chat`."""
    tokenizer(os.path.join(folder, "talks"))
    run, named = (os.path.join(folder, name) for name in ("run", "talks"))
    with Server(tiebreak, run, "--tokenizer", named) as server:
        client = server.client()
        try:
            client.chat.completions.create(model="run", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}])
            raise SystemExit("a list of parts was answered")
        except openai.BadRequestError as error:
            assert error.param == "messages", error
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda number: chat(client, "run", number), range(count)))
    for number, (text, receipt, reason) in enumerate(answers):
        messages, fields = chats(number)
        with open(os.path.join(folder, "chat.json"), "w") as file:
            json.dump({"messages": messages}, file)
        settings = ["--length", fields["max_tokens"], "--temperature", fields["temperature"], "--seed", fields["seed"]]
        line = ["generate", "run", "--json", "--receipt", "r", "--tokenizer", "talks", "--chat", "chat.json"]
        said = json.loads(call(*line, *map(str, settings)))
        with open(os.path.join(folder, "r")) as file:
            assert file.read() == receipt, f"chat {number}: another receipt"
        assert (said["answer"], said["ended"]) == (text, reason == "stop"), f"chat {number}: {text!r} {reason}"
    reasons = sorted({reason for _, _, reason in answers})
    return f"{count} receipts of chats are generate's files (finish_reason {', '.join(reasons)})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiebreak", default="tiebreak")
    parser.add_argument("--requests", type=int, default=64)
    args = parser.parse_args()
    tiebreak = os.path.abspath(args.tiebreak) if os.sep in args.tiebreak else args.tiebreak
    with tempfile.TemporaryDirectory() as folder:
        def call(*command):
            done = subprocess.run([tiebreak, *command], cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{command}: {done.stderr}")
            return done.stdout

        with open(os.path.join(folder, "text.txt"), "w") as file:
            file.write(TEXT * 40)
        with open(os.path.join(folder, "job.toml"), "w") as file:
            file.write(JOB)
        call("train", "job.toml", "--out", "run", "-q")
        call("key", "new", "me.key", "--name", "me.example")
        run, key = (os.path.join(folder, name) for name in ("run", "me.key"))
        numbers = range(args.requests)
        seconds = {}
        with Server(tiebreak, run, "--key", key, "--name", "mine", "--seats", str(CLIENTS)) as server:
            client = server.client()
            assert [model.id for model in client.models.list()] == ["mine"]
            refusals(client, "mine")
            for clients in (1, CLIENTS):
                begin = time.time()
                with ThreadPoolExecutor(clients) as pool:
                    answers = list(pool.map(lambda number: ask(client, "mine", number), numbers))
                seconds[clients] = time.time() - begin
                for number, (text, receipt, _) in zip(numbers, answers):
                    _, options = settings(number)
                    said = json.loads(call("generate", "run", "--json", "--receipt", "r", "--key", key, *options))
                    with open(os.path.join(folder, "r")) as file:
                        assert file.read() == receipt, f"request {number} of {clients} at once: another receipt"
                    assert said["text"] == options[1] + text, f"request {number}: another text"
                with open(os.path.join(folder, "r"), "w") as file:
                    file.write(answers[0][1])
                assert call("receipt", "check", "r", "run", "--signer-key", key + ".pub").startswith("MATCHES")
        assert server.status == 0, server.status
        talked = ask_chats(tiebreak, folder, call, args.requests)
    tokens = sum(tokens for _, _, tokens in answers)
    rates = ", ".join(f"{tokens / seconds[clients]:.0f} tokens/s with {clients} at once" for clients in seconds)
    print(f"RESULT: openai {openai.__version__}: {2 * len(answers)} receipts are generate's files; {rates}; {talked}")


if __name__ == "__main__":
    sys.exit(main())
