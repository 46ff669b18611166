#!/usr/bin/env python3
"""Verifies a statement with libraries of others, securesystemslib and in-toto-attestation.

    dsse.py FILE KEY [HEAD]

KEY is the text of a public key (NAME+HASH+BASE64). HEAD is the file of the head that the statement is about.
"""

import base64
import hashlib
import json
import sys

from google.protobuf import json_format
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1 import statement_pb2
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey


def main(file, text, head=None):
    key = base64.b64decode(text.split("+", 2)[2])
    if key[0] != 1:
        sys.exit("the key is not Ed25519")
    key = key[1:]
    # The hint that the envelope has for this key.
    keyid = hashlib.sha256(key).digest()[:12].hex()
    envelope = Envelope.from_dict(json.load(open(file, encoding="utf-8")))
    if envelope.payload_type != "application/vnd.in-toto+json":
        sys.exit(f"the payload is of type {envelope.payload_type}")
    envelope.verify([SSlibKey(keyid, "ed25519", "ed25519", {"public": key.hex()})], 1)
    statement = Statement.copy_from_pb(json_format.Parse(envelope.payload, statement_pb2.Statement()))
    statement.validate()
    subject = statement.pb.subject[0]
    if head is not None:
        lines = open(head, "rb").read().split(b"\n\n")[0] + b"\n"
        if hashlib.sha256(lines).hexdigest() != subject.digest["sha256"]:
            sys.exit("the statement is about another head")
    print(statement.pb.predicate_type, subject.name)


main(*sys.argv[1:])
