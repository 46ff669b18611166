"""A log of others at a witness: PyPI's aics-tlog signs and proves, aics-witness's client asks and verifies the cosignature.

Arguments: the witness's address, its key, and the step: `key`, `grow` or `fork`. Prints the log's key, or what the witness did.
"""

import sys
from pathlib import Path

from aics_tlog import MerkleTree, format_vkey, parse_checkpoint, sign_checkpoint, vkey_from_ed25519
from aics_tlog.checkpoint import Checkpoint
from aics_witness import FeederError, WitnessClient
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ORIGIN = "log.example/others"
address, witness, step = sys.argv[1:]
key = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
if step == "key":
    print(format_vkey(vkey_from_ed25519(ORIGIN, key.public_key())))
    sys.exit()

leaves = [b"leaf %d" % number for number in range(7)]
if step == "fork":
    leaves[1] = b"another leaf"
tree = MerkleTree(leaves)
with WitnessClient(address, witness, max_attempts=1, state_path=Path("feeder.json") if step == "grow" else None) as client:
    for size in {"grow": [3, 7, 7], "fork": [7]}[step]:
        note = sign_checkpoint(Checkpoint(ORIGIN, size, tree.root(size)), key, ORIGIN)
        assert parse_checkpoint(note.text).size == size
        try:
            lines = client.submit(note.to_bytes(), tree.consistency_proof)
            print(f"size {size}: {lines.count(chr(0x2014))} cosignature")
        except FeederError as error:
            print(f"size {size}: refused: {error}")
