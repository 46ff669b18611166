"""Makes beacon.json: a network of drand with a key of our own, and signatures of its rounds, from drand's specification.

Run by hand, since py_ecc is no tool of CI: `python3 assets/vectors/beacon.py > assets/vectors/beacon.json`, with py_ecc 8.0.0. It
checks first that two rounds of quicknet, which its servers published, verify.
"""

import hashlib
import json
import struct

from py_ecc.bls.hash_to_curve import hash_to_G1
from py_ecc.bls.point_compression import compress_G1, compress_G2, decompress_G1, decompress_G2
from py_ecc.optimized_bls12_381 import G2, multiply, pairing

DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"
QUICKNET = (
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
PUBLISHED = {
    1000: "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
    657413: "b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b",
}
SECRET = int.from_bytes(hashlib.sha256(b"a network of drand for tests").digest(), "big") >> 2
PERIOD, GENESIS, SEED, NAME = 30, 1_700_000_000, hashlib.sha256(b"group").hexdigest(), "ours"
# The first round, one of 2023, and one of the year 2099.
ROUNDS = [1, 4711, 79_030_294]


def hashed(number):
    return hash_to_G1(hashlib.sha256(struct.pack(">Q", number)).digest(), DOMAIN, hashlib.sha256)


def verifies(key, number, signature):
    key = decompress_G2((int(key[:96], 16), int(key[96:], 16)))
    point = decompress_G1(int(signature, 16))
    return pairing(G2, point) == pairing(key, hashed(number))


def main():
    assert all(verifies(QUICKNET, number, signature) for number, signature in PUBLISHED.items())
    key = "".join(f"{half:096x}" for half in compress_G2(multiply(G2, SECRET)))
    header = struct.pack(">Iq", PERIOD, GENESIS) + bytes.fromhex(key) + bytes.fromhex(SEED) + NAME.encode()
    chain = hashlib.sha256(header).hexdigest()
    rounds = []
    for number in ROUNDS:
        signature = f"{compress_G1(multiply(hashed(number), SECRET)):096x}"
        assert verifies(key, number, signature)
        randomness = hashlib.sha256(bytes.fromhex(signature)).hexdigest()
        rounds.append({"round": number, "randomness": randomness, "signature": signature})
    info = {
        "public_key": key,
        "period": PERIOD,
        "genesis_time": GENESIS,
        "hash": chain,
        "groupHash": SEED,
        "schemeID": "bls-unchained-g1-rfc9380",
        "metadata": {"beaconID": NAME},
    }
    print(json.dumps({"info": info, "rounds": rounds}, indent=1))


main()
