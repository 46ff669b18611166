"""The worked example of docs/DISPUTE-WIRE.md: two parties with one root, from terms to the referee's verdict. It shares no code with the project.

Both commit and open, nobody differs, and both remain.
"""

import base64
import hashlib
import json
import tomllib

from hashes import BASE, ORDER, P, _multiply, blake3, derive, ed25519_verifies, merkle_root
from program_example import program
from run_format import F32, job_digest, listed, option, sized, state_digest, table_root, tensor_digest

JOB = """steps = 1
program = "line.program"
data = { kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "f32" }
schedule = { peak = 0.5 }
"""


def text(value):
    """JSON without white space, fields in the order in which they were given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def b64(data):
    return base64.b64encode(data).decode()


def compress(point):
    x, y, z, _ = point
    x, y = x * pow(z, -1, P) % P, y * pow(z, -1, P) % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


class Key:
    """An Ed25519 key (RFC 8032) of a seed of 32 bytes."""

    def __init__(self, name, seed):
        digest = hashlib.sha512(seed).digest()
        self.scalar = int.from_bytes(digest[:32], "little") & (1 << 254) - 8 | 1 << 254
        self.prefix, self.public, self.name = digest[32:], compress(_multiply(self.scalar, BASE)), name

    def sign(self, message):
        number = lambda *parts: int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % ORDER
        r = number(self.prefix, message)
        point = compress(_multiply(r, BASE))
        signature = point + ((r + number(point, self.public, message) * self.scalar) % ORDER).to_bytes(32, "little")
        assert ed25519_verifies(self.public, message, signature)
        return signature

    def text(self):
        """The C2SP form."""
        key = b"\1" + self.public
        short = hashlib.sha256(self.name.encode() + b"\n" + key).digest()[:4]
        return f"{self.name}+{short.hex()}+{b64(key)}"

    def seal(self, domain, body):
        return {"body": body, "signature": b64(self.sign(domain.encode() + b"\n" + text(body)))}


def computation():
    """(fields of the terms, computation digest)"""
    job = job_digest(tomllib.loads(JOB), None)
    digest, data = derive("tiebreak 2 program", program()), bytes([0xDA]) * 32
    weight = tensor_digest(F32, [1], blake3(bytes(4)))
    initial = state_digest(table_root([("param/w", weight)]), merkle_root([]), merkle_root([]))
    contract = "tiebreak-contract-2"
    named = derive("tiebreak 2 computation", sized(contract.encode()) + job + digest + data + initial + option(None))
    fields = {"contract": contract, "challenge": None, "program": digest.hex(), "data": data.hex(), "initial": initial.hex()}
    return fields, named


def example():
    alice, bob, referee = (Key(f"{name}.example", bytes([number]) * 32) for number, name in enumerate(("alice", "bob", "referee"), 1))
    fields, named = computation()
    terms = {
        "format": 2,
        "computation": fields,
        "job": JOB,
        "program": b64(program()),
        "parties": [alice.text(), bob.text()],
        "referee": referee.text(),
        "clocks": {"moves": 60000, "increment": 2000, "replay": 60000},
        "nonce": (bytes([0x0E]) * 32).hex(),
    }
    game = derive("tiebreak 2 game", text(terms)).hex()
    root, questions, events, answers = bytes([0x77]) * 32, [], [], []
    for turn, ask in enumerate(("commit", "reveal")):
        asked = {"game": game, "turn": turn, "question": {"ask": ask}}
        questions.append(referee.seal("tiebreak 2 game question", asked))
        digest = derive("tiebreak 2 question", text(asked)).hex()
        for party, key in enumerate((alice, bob)):
            salt = bytes([0xA0 + party]) * 32
            commitment = derive("tiebreak 2 game commitment", key.public + salt + root)
            said = {"is": "commit", "commitment": commitment.hex()} if turn == 0 else {"is": "reveal", "salt": salt.hex(), "root": root.hex()}
            answer = key.seal("tiebreak 2 game answer", {"game": game, "turn": turn, "question": digest, "answer": said})
            answers.append(answer)
            events.append({"at": 100 * len(answers), "party": party, "message": b64(text(answer))})
    result = {"absent": [], "games": [], "remaining": [0, 1], "upheld": root.hex()}
    verdict = {"game": 1, "terms": terms, "events": events, "result": result, "signature": ""}
    verdict["signature"] = b64(referee.sign(b"tiebreak 2 game verdict\n" + text(verdict)))
    trace, record = bytes([0x7A]) * 32, bytes([0xEC]) * 32
    signed = f"tiebreak 2 statement\n{named.hex()}\n1\n{record.hex()}\n{trace.hex()}\n".encode()
    statement = {"is": "statement", "computation": named.hex(), "step": 1, "record": record.hex(), "trace": trace.hex(), "signature": b64(alice.sign(signed))}
    return {
        "terms": text(terms).decode(),
        "game": game,
        "computation": named.hex(),
        "question": text(questions[0]).decode(),
        "question_digest": derive("tiebreak 2 question", text(questions[0]["body"])).hex(),
        "answer": text(answers[0]).decode(),
        "statement": text(statement).decode(),
        "verdict": text(verdict).decode(),
    }
