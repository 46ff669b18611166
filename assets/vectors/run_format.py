#!/usr/bin/env python3
"""Reads a run's folder and checks all that docs/RUN-FORMAT.md defines, from that page alone: it shares no code with the project.

    python3 assets/vectors/run_format.py RUN [--data FOLDER] [--salt-key FILE] [--json]

Prints a line a check, and stops with exit code 1 at the first difference, which it names. What is left out is
printed. --json prints the digests. Needs only the standard library.
"""

import argparse
import base64
import hashlib
import json
import math
import os
import pathlib
import re
import struct
import sys
import tomllib

from hashes import blake3, derive, ed25519_verifies, group_values, merkle_root, merkle_root_from_proof, root_of_groups
from program_format import Malformed, Program, Reader, bytes_of, part_of
from run_batches import batch_tensors, knows
from run_corrections import read_correction
from run_job import canonical_job, data_paths, drawn, with_frozen
import salts

GROUP, TILE, RECORD_MAX = 65536, 4096, 256
F32, U32, U8 = 1, 2, 3
# The names of docs/WEIGHTS.md, "What makes a model usable".
COMPANIONS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
COMPANIONS += ["vocab.json", "vocab.txt", "merges.txt", "encoder.json", "vocab.bpe", "tokenizer.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json"]


class Differs(Exception):
    """The first thing that is not as the page says."""


def same(what, have, want):
    if have != want:
        show = lambda value: value.hex() if isinstance(value, bytes) else repr(value)
        raise Differs(f"{what}: {show(have)} is there, {show(want)} follows from the rest")


def must(what, holds):
    if not holds:
        raise Differs(what)


# --- Forms ---


def sized(data):
    return struct.pack("<I", len(data)) + data


def listed(items):
    return struct.pack("<I", len(items)) + b"".join(items)


def job_digest(job, program):
    """The digest of the settings of a job: texts by their keys, in the order of these."""
    settings = sorted(canonical_job(job, program).items())
    return derive("tiebreak 2 job", listed([sized(key.encode()) + sized(value.encode()) for key, value in settings]))


def option(digest):
    return b"\0" if digest is None else b"\1" + digest


def u64(number):
    return struct.pack("<Q", number)


def unhex(text, length):
    must(f"{text!r} is not {length} bytes in lower-case hexadecimal", re.fullmatch(f"[0-9a-f]{{{2 * length}}}", text))
    return bytes.fromhex(text)


def table_root(entries):
    """The Merkle root over (name, digest)."""
    return merkle_root([sized(name.encode()) + digest for name, digest in entries])


def tensor_digest(code, shape, root):
    return derive("tiebreak 2 tensor", bytes([code]) + listed([struct.pack("<I", dim) for dim in shape]) + root)


# --- Records ---


def decode_record(data):
    """A record as a dictionary of its fields."""
    r = Reader(data, "record")
    kind = r.u8()
    if kind == 0:
        record = {"kind": "initial", "computation": r.digest(), "state": r.digest()}
    elif kind == 1:
        record = {"kind": "step", "computation": r.digest(), "step": r.u32(), "state": r.digest(), "batch": r.digest()}
        record |= {name: r.choice(r.digest) for name in ("gradients", "trace", "log")}
        record |= {name: r.u32() for name in ("learning_rate", "clip", "loss")}
        record["samples"] = r.u64()
    elif kind == 2:
        record = {"kind": "final", "computation": r.digest(), "steps": r.u32()}
        record |= {name: r.digest() for name in ("parameters", "buffers", "slots")}
    else:
        raise Malformed(f"record: no kind has the number {kind}")
    r.end()
    return record


def state_digest(parameters, buffers, slots):
    return derive("tiebreak 2 state", parameters + buffers + slots)


def read_transcript(data):
    """The bytes of the records, and how many bytes a torn tail has."""
    records, at = [], 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        must(f"transcript, byte {at}: a record of {length} bytes", length <= RECORD_MAX)
        frame = data[at : at + 4 + length + 8]
        record = frame[4 : 4 + length]
        if length == 0 or len(frame) < length + 12:
            break
        if blake3(record)[:8] != frame[4 + length :]:
            must(f"record {len(records)}: its checksum is wrong, and more follows", at + len(frame) == len(data))
            break
        records.append(record)
        at += len(frame)
    return records, len(data) - at


# --- Notes and keys ---


class Key:
    """A C2SP verifier key, `NAME+HASH+KEY`: the hash is the first four bytes of SHA-256(name, line end, key), the key base64 of 1 (Ed25519) and 32 bytes."""

    def __init__(self, text):
        self.name, short, key = text.split("+", 2)
        key = base64.b64decode(key, validate=True)
        must(f"trainer's key {text}: not one of Ed25519", len(key) == 33 and key[0] == 1)
        self.short = hashlib.sha256(self.name.encode() + b"\n" + key).digest()[:4]
        same("hash of the trainer's key", unhex(short, 4), self.short)
        self.public = key[1:]


def read_note(note):
    """Origin, size, root, the signed text and the signature lines of a head."""
    text, separator, signatures = note.partition("\n\n")
    must("head: no blank line", separator)
    lines = text.split("\n")
    must(f"head: {len(lines)} lines of text", len(lines) == 3)
    must("head: the size is not decimal", re.fullmatch("0|[1-9][0-9]*", lines[1]))
    root = base64.b64decode(lines[2], validate=True)
    must("head: the root is not the base64 of 32 bytes", len(root) == 32 and base64.b64encode(root).decode() == lines[2])
    must("head: no line end at the end", not signatures or signatures.endswith("\n"))
    return lines[0], int(lines[1]), root, text + "\n", signatures.split("\n")[:-1]


def check_signatures(what, text, lines, key):
    """The trainer's signature stands under the text, once, and every line is a signature."""
    found = 0
    for line in lines:
        must(f"{what}: {line!r} is no signature", re.fullmatch("\u2014 [^ +]+ [A-Za-z0-9+/]+=*", line))
        _, name, value = line.split(" ")
        value = base64.b64decode(value, validate=True)
        must(f"{what}: {line!r} is not in the shortest base64", base64.b64encode(value).decode() == line.split(" ")[2])
        if key and name == key.name and value[:4] == key.short:
            must(f"{what}: the signature of {name} does not verify", ed25519_verifies(key.public, text.encode(), value[4:]))
            found += 1
    if key:
        must(f"{what}: {found} signatures by {key.name}", found == 1)


# --- Safetensors ---


def unique(pairs):
    must(f"JSON: a key of {[key for key, _ in pairs]} is there twice", len(dict(pairs)) == len(pairs))
    return dict(pairs)


def read_safetensors(path):
    """(name, shape, canonical bytes) of every tensor, by place in the file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    must(f"{path.name}: the header does not fit", 8 + length <= len(data))
    header = json.loads(data[8 : 8 + length], object_pairs_hook=unique)
    tensors, end = [], 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        size = bytes_of(F32, entry["shape"])
        must(f"{path.name}: {name} is not F32, or not where it must be", entry["dtype"] == "F32" and (start, stop) == (end, end + size))
        end = stop
        tensors.append((name, entry["shape"], data[8 + length + start : 8 + length + stop]))
    same(f"{path.name}: bytes of tensors", len(data) - 8 - length, end)
    return tensors


# --- The run ---


class Run:
    def __init__(self, root, data, report, salt_key=None):
        self.root, self.report, self.data, self.salt_key = pathlib.Path(root), report, data, salt_key
        self.digests, self.not_checked = {}, []
        self.job_text = (self.root / "job.toml").read_bytes()
        must("job.toml: above 1 MiB", len(self.job_text) <= 1 << 20)
        self.job = tomllib.loads(self.job_text.decode())
        text = (self.root / "run.json").read_bytes()
        self.file = json.loads(text, object_pairs_hook=unique)
        same("run.json: its one encoding", text, json.dumps(self.file, indent=2, ensure_ascii=False).encode())
        self.program = Program((self.root / "program.bin").read_bytes())
        same("program digest", unhex(self.file["program"], 32), derive("tiebreak 2 program", self.program.data))
        batch = self.job.get("batch", {})
        self.micro_batches, self.micro_batch = self.program.micro_batches, self.program.micro_batch
        if [name for name, _, _ in self.program.batch[1:]] == ["labels"]:
            labels = math.prod(self.program.batch[1][2]) // self.micro_batch
            same("labels of a sample", self.program.labels_per_sample, labels)
        if "program" not in self.job:
            same("micro-batches of the program and of the job", self.micro_batches, batch.get("micro_batches", 1))
            same("samples of a micro-batch of the program and of the job", self.micro_batch, batch["micro_batch"])

    def check(self):
        self.names()
        self.identity()
        must("a salt key is needed for a run that hides", self.salt_key is not None or "salts" not in self.file)
        self.data_files()
        self.transcript()
        self.heads()
        self.corrections()
        self.states()
        self.commitments()

    def salted(self, kind, step, digests):
        """The digests as they stand in leaves: salted if the run hides."""
        if self.salt_key is None:
            return digests
        return [salts.salted(self.salt_key, kind, step, number, digest) for number, digest in enumerate(digests)]

    def passed(self, what):
        self.report(f"ok: {what}")

    def names(self):
        known = "run.json|job.toml|program.bin|network.json|data/data-[0-9]+.(bin|tree)|transcript|gradients|heads/[0-9]{12}"
        known += "|evaluation/data-[0-9]+.bin|metrics.jsonl|events.out.tfevents.tiebreak|companions/(" + "|".join(map(re.escape, COMPANIONS)) + ")"
        known += "|checkpoints/step-[0-9]{9}.safetensors|(traces|logs)/step-[0-9]{9}|model.safetensors|lock"
        known += "|corrections/(step-[0-9]{9}|corrects)|withdrawn/[0-9]{3}-.+"
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                path = pathlib.Path(folder, name)
                must(f"{path}: a link", not path.is_symlink())
                relative = path.relative_to(self.root).as_posix()
                if name in files and not name.startswith(".") and not re.fullmatch(known, relative):
                    self.not_checked.append(f"{relative}, which is no file of a run")
        self.passed("files have the names of a run, and none is a link")

    def identity(self):
        file = self.file
        hides, fields = self.job.get("commit", {}).get("scheme", 0) == 1, ["contract", "trainer_key", "challenge", "nonce", "program", "initial", "origin", "data"]
        same("run.json: fields", list(file), [*fields, "salts"] if hides else fields)
        must("a salt key is for a run that hides", hides or self.salt_key is None)
        same("run.json: contract", file["contract"], "tiebreak-contract-2")
        self.key = None if file["trainer_key"] is None else Key(file["trainer_key"])
        challenge = option(None if file["challenge"] is None else unhex(file["challenge"], 32))
        job = job_digest(self.job, self.program)
        program, self.initial = unhex(file["program"], 32), unhex(file["initial"], 32)
        must("run.json: above 65536 data files", len(file["data"]) <= 65536)
        data = merkle_root([self.manifest_entry(entry) for entry in file["data"]])
        if hides:
            must("run.json: a data file that hides has a length", all(entry["bytes"] == 0 for entry in file["data"]))
            data = derive("tiebreak 2 hidden-data", unhex(file["salts"], 32) + data)
            if self.salt_key is not None:
                same("run.json: salts", unhex(file["salts"], 32), salts.commitment(self.salt_key))
        sown = bytes(32) if self.job["data"].get("sampling") == "in_order" else data
        sown = salts.salted(self.salt_key, "seed", 0, 0, sown) if hides and self.salt_key is not None else sown
        seed = derive("tiebreak 2 seed", job + program + sown + challenge)
        self.computation = derive("tiebreak 2 computation", sized(file["contract"].encode()) + job + program + data + self.initial + challenge)
        origin = derive("tiebreak 2 initial-origin", self.origin())
        job_file = derive("tiebreak 2 job-file", self.job_text)
        public = self.key.public if self.key else bytes(32)
        nonce = unhex(file["nonce"], 16)
        self.id = derive("tiebreak 2 run-id", self.computation + job_file + origin + public + nonce)
        self.digests |= {"job": job, "program": program, "data": data, "seed": seed, "computation": self.computation}
        self.digests |= {"job_file": job_file, "origin": origin, "run": self.id}
        self.passed(f"computation {self.computation.hex()}")
        self.passed(f"run {self.id.hex()}")

    @staticmethod
    def manifest_entry(entry):
        same("run.json: fields of a data file", list(entry), ["bytes", "root"])
        must("run.json: a data file above 2^40 bytes", 0 <= entry["bytes"] <= 1 << 40)
        return u64(entry["bytes"]) + unhex(entry["root"], 32)

    def origin(self):
        """The bytes that the origin's digest is of; of an earlier run, its final record is read."""
        origin = self.file["origin"]
        fields = {"seed": ["kind"], "weights": ["kind", "files"], "run": ["kind", "head", "record", "optimizer_state"]}
        same("run.json: fields of the origin", list(origin), fields.get(origin["kind"]))
        self.earlier = None
        if origin["kind"] == "seed":
            return b"\0"
        if origin["kind"] == "weights":
            self.not_checked.append("the files of weights, which are no part of the run")
            if drawn(self.job, self.program):
                self.not_checked.append("the elements that init.reinitialize draws")
            return b"\1" + listed([self.manifest_entry(entry) for entry in origin["files"]])
        proven = origin["record"]
        same("run.json: fields of the origin's record", list(proven), ["index", "record", "proof"])
        record, proof = base64.b64decode(proven["record"], validate=True), [unhex(hash, 32) for hash in proven["proof"]]
        _, size, root, _, _ = read_note(origin["head"])
        must("origin: the record is not under its head", proven["index"] < size)
        same("origin: root of the earlier run's head", root, merkle_root_from_proof(record, proven["index"], size, proof))
        self.earlier = decode_record(record)
        same("origin: kind of the earlier run's record", self.earlier["kind"], "final")
        self.passed("the earlier run's final record is under its head")
        head, carried = sized(origin["head"].encode()), bytes([origin["optimizer_state"]])
        return b"\2" + head + u64(proven["index"]) + sized(record) + listed(proof) + carried

    def data_files(self):
        self.data_bytes = []
        for number, entry in enumerate(self.file["data"]):
            tree = (self.root / f"data/data-{number}.tree").read_bytes()
            if self.salt_key is not None:
                self.hidden_file(number, entry, tree)
                continue
            groups = max(1, -(-entry["bytes"] // GROUP))
            same(f"data-{number}.tree: bytes", len(tree), 32 * groups)
            values = [tree[at : at + 32] for at in range(0, len(tree), 32)]
            same(f"data file {number}: root of its tree", root_of_groups(values), unhex(entry["root"], 32))
            path = self.data_file(number)
            if path is None:
                self.not_checked.append(f"data file {number}, which the run does not hold; say where it is with --data")
                continue
            data = path.read_bytes()
            same(f"data file {number}: bytes", len(data), entry["bytes"])
            for group, (have, want) in enumerate(zip(group_values(data, GROUP), values, strict=True)):
                same(f"data file {number}: group {group}", have, want)
            self.data_bytes.append(data)
            self.passed(f"data file {number}: {len(values)} groups, and their root")

    def hidden_file(self, number, entry, tree):
        """A data file of a run that hides: its tree begins with its length."""
        length, values = int.from_bytes(tree[:8], "little"), [tree[at : at + 32] for at in range(8, len(tree), 32)]
        same(f"data-{number}.tree: bytes", len(tree), 8 + 32 * max(1, -(-length // GROUP)))
        root = salts.file_root(self.salt_key, number, length, values)
        same(f"data file {number}: root of its tree", root, unhex(entry["root"], 32))
        path = self.data_file(number)
        if path is None:
            self.not_checked.append(f"data file {number}, which the run does not hold; say where it is with --data")
            return
        data = path.read_bytes()
        same(f"data file {number}: bytes", len(data), length)
        for group, (have, want) in enumerate(zip(salts.group_roots(self.salt_key, number, data), values, strict=True)):
            same(f"data file {number}: group {group}", have, want)
        self.data_bytes.append(data)
        self.passed(f"data file {number}: {len(values)} salted groups, and their root")

    def data_file(self, number):
        copied = self.job["data"].get("copy", True)
        if copied:
            return self.root / f"data/data-{number}.bin"
        paths = data_paths(self.job["data"])
        found = [pathlib.Path(self.data, name) for name in (f"data-{number}.bin", pathlib.PurePosixPath(paths[number]).name)] if self.data else []
        return next((path for path in found if path.is_file()), None)

    def transcript(self):
        self.leaves, self.torn = read_transcript((self.root / "transcript").read_bytes())
        self.records = [decode_record(leaf) for leaf in self.leaves]
        must("transcript: no record", self.records)
        steps = self.job["steps"]
        for number, record in enumerate(self.records):
            same(f"record {number}: kind", record["kind"], "initial" if number == 0 else "final" if number > steps else "step")
            same(f"record {number}: computation", record["computation"], self.computation)
            if record["kind"] == "step":
                self.step_record(number, record)
        must(f"transcript: {len(self.records)} records for {steps} steps", len(self.records) <= steps + 2)
        same("record 0: state", self.records[0]["state"], self.initial)
        self.final = self.records[-1] if len(self.records) == steps + 2 else None
        if self.final:
            same("final record: steps", self.final["steps"], steps)
            roots = [self.final[name] for name in ("parameters", "buffers", "slots")]
            same("final record: state", state_digest(*roots), self.records[-2]["state"])
        self.digests["transcript"] = merkle_root(self.leaves)
        steps = [record for record in self.records if record["kind"] == "step"]
        if self.salt_key is not None:
            for field in ("loss", "clip"):
                words = [salts.masked(self.salt_key, field, record["step"], record[field]) for record in steps]
                self.digests[field] = struct.pack(f"<{len(words)}I", *words)
        self.passed(f"transcript: {len(self.records)} records" + (f", and a torn tail of {self.torn} bytes" if self.torn else ""))

    def step_record(self, number, record):
        granularity = self.job.get("commit", {}).get("granularity", "microbatch")
        same(f"record {number}: step", record["step"], number)
        same(f"record {number}: samples drawn", record["samples"], number * self.micro_batch * self.micro_batches)
        same(f"record {number}: has gradients", record["gradients"] is not None, granularity != "step")
        same(f"record {number}: has a trace", record["trace"] is not None, granularity == "operator")
        same(f"record {number}: has a log", record["log"] is not None, "rounding" in self.job)

    def heads(self):
        sizes = []
        for path in sorted((self.root / "heads").iterdir()):
            if path.name.startswith("."):
                continue
            what, note = f"head {path.name}", path.read_bytes().decode()
            origin, size, root, text, lines = read_note(note)
            same(f"{what}: origin", origin, f"tiebreak/run/{self.id.hex()}")
            same(f"{what}: size", f"{size:012}", path.name)
            must(f"{what}: the transcript has {len(self.leaves)} records", size <= len(self.leaves))
            same(f"{what}: root", root, merkle_root(self.leaves[:size]))
            check_signatures(what, text, lines, self.key)
            sizes.append(size)
            self.passed(f"{what}: root {root.hex()}" + (", signed" if self.key else ""))
        must("heads: none over the initial record", 1 in sizes)
        if self.final:
            must("heads: none over the whole transcript", len(self.leaves) in sizes)

    def corrections(self):
        folder = self.root / "corrections"
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.name.startswith("."):
                continue
            what = f"corrections/{path.name}"
            must(f"{what}: the run names no key", self.key)
            correction = read_correction(path.read_bytes(), self.key.public, read_note, decode_record)
            for side in (correction["old"], correction["new"]):
                check_signatures(f"{what}: head", side["text"], side["lines"], self.key)
            step, mine = correction["step"], correction["new" if path.name == "corrects" else "old"]
            same(f"{what}: run", mine["origin"], f"tiebreak/run/{self.id.hex()}")
            must(f"{what}: the transcript has {len(self.leaves)} records", mine["size"] <= len(self.leaves))
            same(f"{what}: root", mine["root"], merkle_root(self.leaves[: mine["size"]]))
            must(f"{what}: it is of step {step}", path.name in ("corrects", f"step-{step:09}"))
            self.digests["correction"] = correction["digest"]
            self.passed(f"{what}: {correction['digest'].hex()}")

    def states(self):
        for path in sorted((self.root / "checkpoints").iterdir()):
            if path.name.startswith("."):
                continue
            step = int(path.name[5:14])
            must(f"{path.name}: the transcript has no record of step {step}", step < len(self.records) - (self.final is not None))
            same(f"{path.name}: state", state_digest(*self.state_roots(path, step)), self.records[step]["state"])
            self.passed(f"{path.name}: state {self.records[step]['state'].hex()}")
        if self.file["origin"]["kind"] != "seed":
            self.initial_state()
        if self.final:
            parameters, buffers, _ = self.state_roots(self.root / "model.safetensors", self.job["steps"], whole=False)
            same("model.safetensors: root of the parameters", parameters, self.final["parameters"])
            same("model.safetensors: root of the buffers", buffers, self.final["buffers"])
            self.passed(f"model.safetensors: parameters {parameters.hex()}")

    def initial_state(self):
        """What checkpoint 0 must be if the state comes from weights or an earlier run."""
        path = self.root / "checkpoints/step-000000000.safetensors"
        parameters, buffers, slots = self.state_roots(path, 0)
        if self.earlier:
            same("checkpoint 0: parameters of the earlier run", parameters, self.earlier["parameters"])
            same("checkpoint 0: buffers of the earlier run", buffers, self.earlier["buffers"])
        if self.earlier and self.file["origin"]["optimizer_state"]:
            same("checkpoint 0: slots of the earlier run", slots, self.earlier["slots"])
        else:
            slots = [data for name, _, data in read_safetensors(path) if not name.startswith(("param/", "buffer/"))]
            must("checkpoint 0: the slots are not zeros", not any(map(any, slots)))
        self.passed("checkpoint 0 is what the origin says")

    def state_roots(self, path, step, whole=True):
        """The Merkle roots of parameters, buffers and slots of a file, whose tensors lie in the program's order."""
        tensors = with_frozen(path, self.program, read_safetensors, whole and step and self.file["origin"]["kind"] != "seed")
        state = self.program.state()
        state = state if whole else state[: len(self.program.parameters) + len(self.program.buffers)]
        same(f"{path.name}: tensors", [(name, shape) for name, shape, _ in tensors], state)
        parts = ([], [], [])
        digests = self.salted("state", step, [tensor_digest(F32, shape, blake3(data)) for _, shape, data in tensors])
        for (name, _, _), digest in zip(tensors, digests, strict=True):
            part = part_of(name)
            must(f"{path.name}: {name} stands behind a later part", not any(parts[part + 1 :]))
            parts[part].append((name, digest))
        return [table_root(part) for part in parts]

    def commitments(self):
        """What step records commit to: gradients, traces and logs."""
        steps = [record for record in self.records if record["kind"] == "step"]
        self.batches(steps)
        gradients = self.gradients(steps) if steps and steps[0]["gradients"] else {}
        for record in steps:
            if record["trace"]:
                self.trace(record, gradients[record["step"]])
            if record["log"]:
                log = (self.root / f"logs/step-{record['step']:09}").read_bytes()
                same(f"log of step {record['step']}", tensor_digest(U8, [len(log)], blake3(log)), record["log"])
                self.passed(f"log of step {record['step']}: {record['log'].hex()}")

    def batches(self, steps):
        """The batch of each step, where the program says what a batch is and the data are at hand."""
        complete = len(self.data_bytes) == len(self.file["data"])
        if not complete or not knows(self.job["data"]):
            self.not_checked.append("the batches of steps, for which the data files and a known kind of data are needed")
            return
        for record in steps:
            tensors = batch_tensors(self.program, self.job, self.data_bytes, self.digests["seed"], record["step"])
            leaves = [(f"micro{i}/{name}", tensor_digest(code, shape, blake3(data))) for i, name, code, shape, data in tensors]
            digests = self.salted("batch", record["step"], [digest for _, digest in leaves])
            leaves = [(name, digest) for (name, _), digest in zip(leaves, digests, strict=True)]
            same(f"batch of step {record['step']}", table_root(leaves), record["batch"])
        self.passed(f"batches of {len(steps)} steps")

    def gradients(self, steps):
        """The gradient roots of each step's micro-batches."""
        data, found, size = (self.root / "gradients").read_bytes(), {}, 32 * self.micro_batches
        must(f"gradients: {len(data)} bytes for {len(steps)} steps", len(data) >= size * len(steps))
        must("gradients: bytes behind the last record's", self.final is None or len(data) == size * len(steps))
        for record in steps:
            part = data[size * (record["step"] - 1) : size * record["step"]]
            roots = [part[at : at + 32] for at in range(0, size, 32)]
            same(f"gradients of step {record['step']}", table_root((f"micro{i}", root) for i, root in enumerate(roots)), record["gradients"])
            found[record["step"]] = roots
        self.passed(f"gradients of {len(steps)} steps")
        return found

    def trace(self, record, gradients):
        what, data = f"trace of step {record['step']}", (self.root / f"traces/step-{record['step']:09}").read_bytes()
        r = Reader(data, what)
        nodes = r.list(lambda: (r.digest(), r.list(r.digest)))
        r.end()
        positions = list(phases(self.program))
        same(f"{what}: nodes", len(nodes), len(positions))
        leaves, outputs = [], {}
        for (phase, graph, number), (digest, tiles) in zip(positions, nodes, strict=True):
            _, _, output = graph.nodes[number]
            code, shape = graph.tensors[output]
            same(f"{what}: tiles of {phase}/{number}", len(tiles), max(1, -(-bytes_of(code, shape) // TILE)))
            same(f"{what}: digest of {phase}/{number}", tensor_digest(code, shape, root_of_groups(tiles)), digest)
            leaves.append((f"{phase}/{number}", digest))
            outputs[phase, output] = digest
        same(f"{what}: root", table_root(leaves), record["trace"])
        self.trace_agrees(what, record, gradients, outputs)
        self.passed(f"{what}: {len(nodes)} nodes, root {record['trace'].hex()}")

    def trace_agrees(self, what, record, gradients, outputs):
        """Gradients, loss, clip factor and new state, which other files have as well."""
        program, names = self.program, self.program.gradients()
        for i, want in enumerate(gradients):
            have = table_root((name, outputs[f"micro{i}", program.micro.outputs[name]]) for name in names)
            same(f"{what}: gradients of micro-batch {i}", have, want)
        last = (f"accumulate{self.micro_batches - 2}", program.accumulate) if self.micro_batches > 1 else ("micro0", program.micro)
        update = ("update", program.update)
        for field, (phase, graph), name in (("loss", update if "loss" in program.update.outputs else last, "loss"), ("clip", update, "clip")):
            want = tensor_digest(F32, [1], blake3(struct.pack("<I", record[field])))
            same(f"{what}: {field}", outputs[phase, graph.outputs[name]], want)
        state, made = [[], [], []], program.update.outputs
        for name, _ in program.state():
            if name not in made:
                self.not_checked.append(f"{what}: the new state, of which it does not hold {name}")
                return
            part = part_of(name)
            state[part].append((name, outputs["update", made[name]]))
        same(f"{what}: new state", state_digest(*map(table_root, state)), record["state"])


def phases(program):
    """(phase, graph, number of a node) of a trace's leaves, in order."""
    graphs, additions, heights = [], 0, []
    for i in range(program.micro_batches):
        graphs.append((f"micro{i}", program.micro))
        heights.append(0)
        while len(heights) > 1 and (heights[-1] == heights[-2] or i == program.micro_batches - 1):
            heights[-2:] = [max(heights[-2:]) + 1]
            graphs.append((f"accumulate{additions}", program.accumulate))
            additions += 1
    for phase, graph in [*graphs, ("update", program.update)]:
        yield from ((phase, graph, number) for number in graph.traced())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--data", help="where data files are that the run does not hold")
    parser.add_argument("--salt-key", help="the file of the salt key of a run that hides")
    parser.add_argument("--json", action="store_true", help="print the digests")
    arguments = parser.parse_args()
    try:
        key = salts.key_of(pathlib.Path(arguments.salt_key).read_text()) if arguments.salt_key else None
        run = Run(arguments.run, arguments.data, (lambda line: None) if arguments.json else print, key)
        run.check()
    except (Differs, Malformed) as difference:
        sys.exit(f"DIFFERS: {difference}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error) as error:
        sys.exit(f"DIFFERS: malformed: {type(error).__name__}: {error}")
    if arguments.json:
        print(json.dumps({name: digest.hex() for name, digest in run.digests.items()} | {"not_checked": run.not_checked}, indent=2))
    else:
        for what in run.not_checked:
            print(f"not checked: {what}")


if __name__ == "__main__":
    main()
