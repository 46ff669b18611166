#!/usr/bin/env python3
"""Reads a trainer's log of promises by docs/MONITORING-FORMAT.md alone: `promises.py LOG VALUE NONCE WITNESS`.

Checks every promise, head, signature and cosignature. Prints the number of promises, and of the promise whose nonce is given its
number, its challenge, and the earliest time by the witness. Needs only the standard library, and shares no code with the project.
"""

import base64
import hashlib
import json
import pathlib
import re
import sys

from hashes import derive, ed25519_verifies, merkle_root

FIELDS = ["job", "program", "data", "begin", "amendment", "nonce", "round"]


def must(what, holds):
    if not holds:
        sys.exit(f"wrong: {what}")


def key_of(text):
    """The name and the 32 bytes of a key's text, and the hash that lines of signatures of a type have."""
    name, short, blob = text.split("+", 2)
    blob = base64.b64decode(blob, validate=True)
    identity = lambda kind: hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + blob[1:]).digest()[:4]
    must(f"the key {text}", len(blob) == 33 and identity(blob[0]).hex() == short)
    return name, blob[1:], identity


def long(text):
    return len(text.encode()).to_bytes(4, "little") + text.encode()


def promise_of(line, log):
    """A promise, after its own rules and those about the promises before it."""
    promise = json.loads(line)
    must("its fields", list(promise) == FIELDS)
    must("its spelling", json.dumps(promise, separators=(",", ":"), ensure_ascii=False) == line)
    must("its nonce is used again", all(other["nonce"] != promise["nonce"] for other in log))
    begin = promise["begin"]
    if isinstance(begin, dict) and "run" in begin:
        same = [other for other in log if "run" in other["begin"]]
        same = [other for other in same if other["begin"]["run"]["run"] == begin["run"]["run"]]
        must("its amendment's number", promise["amendment"] == len(same) + 1)
    else:
        must("it is no amendment", promise["amendment"] is None)
    return promise


def main():
    path, value, nonce, witness = sys.argv[1:]
    lines = pathlib.Path(path).read_bytes().decode().split("\n")
    must("the last line has no end", lines.pop() == "")
    must("the first line", lines[0] == "tiebreak promises 1")
    trainer, (seen_by, seen_key, seen_id) = key_of(lines[1]), key_of(witness)
    origin = f"tiebreak/promises/{trainer[1].hex()}"
    log, leaves, times, at = [], [], [], 2
    while at < len(lines):
        log.append(promise_of(lines[at], log))
        leaves.append(lines[at].encode())
        root = base64.b64encode(merkle_root(leaves)).decode()
        must("a head", lines[at + 1 : at + 5] == [origin, str(len(log)), root, ""])
        text, at, signed, earliest = "".join(f"{line}\n" for line in lines[at + 1 : at + 4]), at + 5, 0, None
        while at < len(lines) and not lines[at].startswith("{"):
            must("a signature's line", re.fullmatch("\u2014 [^ +]+ [A-Za-z0-9+/]+=*", lines[at]))
            _, name, blob = lines[at].split(" ")
            blob, at = base64.b64decode(blob, validate=True), at + 1
            if name == trainer[0] and blob[:4] == trainer[2](1):
                must("a trainer's signature", ed25519_verifies(trainer[1], text.encode(), blob[4:]))
                signed += 1
            if name == seen_by and blob[:4] == seen_id(4):
                time = int.from_bytes(blob[4:12], "big")
                message = f"cosignature/v1\ntime {time}\n{text}".encode()
                must("a witness's cosignature", ed25519_verifies(seen_key, message, blob[12:]))
                earliest = min(time, earliest or time)
        must("a head is signed", signed == 1)
        times.append(earliest)
    nonce = bytes.fromhex(nonce)
    commitments = [promise["nonce"] for promise in log]
    number = commitments.index(derive("tiebreak 2 draw-commitment", nonce).hex())
    line = leaves[number].decode()
    encoding = long(origin) + number.to_bytes(8, "little") + long(line)
    encoding += b"\0" + long(log[number]["round"]) + long(value) + nonce
    challenge = derive("tiebreak 2 promised-challenge", encoding).hex()
    seen = [time for time in times[number:] if time is not None]
    print(json.dumps({"promises": len(log), "number": number, "challenge": challenge, "witnessed": min(seen, default=None)}))


if __name__ == "__main__":
    main()
