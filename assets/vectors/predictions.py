#!/usr/bin/env python3
"""Receipts of predictions from the text of docs/INFERENCE.md, docs/RUN-FORMAT.md and docs/ARITHMETIC.md alone: one unsigned, one
signed, one salted with its opening, a verdict on one with a wrong class, and the digest of a network file's model.

A perceptron of six pixels and four classes predicts five samples, the last like the first. Its weights are Philox words, as in
tests/runs/predictions.rs. Writes predictions.json beside itself. Needs only the standard library.

    python3 assets/vectors/predictions.py
"""

import json
import math
import pathlib

from contract import philox
from game_example import Key, b64
from hashes import blake3, derive, merkle_root
from inference import Inference, listed, sized, tensor_digest, words
from operators import Tensor, f32, pattern
from steps import Mlp

KEY = 5
FIRST = 2


def weights(model):
    """The tensors of the parameters, in the model's order."""
    for number, parameter in enumerate(model.parameters()):
        count, width = math.prod(parameter.shape), parameter.shape[-1]
        flat = [f32(philox([KEY, 0], [i, 0, number, 0])[0] / 2**30 - 2.0) for i in range(count)]
        yield Tensor([flat[i:i + width] for i in range(0, count, width)])


def predicted(row):
    """The first class with the greatest logit."""
    return max(range(len(row)), key=lambda place: (row[place], -place))


def digest_of_bytes(shape, pixels):
    """A tensor of U32, whose code is 2."""
    return derive("tiebreak 2 tensor", b"\x02" + listed([words([d]) for d in shape]) + blake3(words(pixels)))


def network_settings(network):
    """The keys by which a receipt names the model of a network file, ascending."""
    shape = lambda dims: " ".join(map(str, dims))
    of_sample = lambda tensor: [tensor["shape"][0] // network["micro_batch"], *tensor["shape"][1:]]
    settings = {"network.digits": str(network.get("digits", 3)), "network.rows": shape(of_sample(network["labels"])),
                "network.inputs": shape([network["inputs"].get("below", 0), *of_sample(network["inputs"])])}
    settings |= {f"parameter.{parameter['name']}": shape(parameter["shape"]) for parameter in network["parameters"]}
    for number, node in enumerate(network["nodes"]):
        given = node.get("attributes", {})
        acting = [f"{pattern(f32(given[name])):08x}" if name in ("epsilon", "theta") else str(given[name])
                  for name in ("heads", "ignore", "epsilon", "theta") if name in given]
        assert set(given) <= {"heads", "ignore", "epsilon", "theta", "p"}, "an order that this script does not know"
        settings[f"node.{number}"] = " ".join([node["name"], node["operator"], *node["inputs"], *acting])
    return [sized(name.encode()) + sized(value.encode()) for name, value in sorted(settings.items())]


def main():
    model = Mlp({"inputs": 6, "hidden": [5], "classes": 4, "image_mean": [0.5], "image_std": [0.25]})
    parameters = list(weights(model))
    leaves = [sized(f"param/{parameter.name}".encode()) + tensor_digest(parameter.shape, [pattern(x) for row in tensor.rows for x in row])
              for parameter, tensor in zip(model.parameters(), parameters)]
    keys = {"classes": "4", "hidden": "5", "image_mean": "3f000000", "image_std": "3e800000", "inputs": "6", "kind": "mlp"}
    settings = [(f"model.{name}", value) for name, value in keys.items()]
    settings += [(f"digits.{name}", "3 3 0") for name in ("linear", "conv", "head", "scores", "values")]
    settings = [sized(name.encode()) + sized(value.encode()) for name, value in sorted(settings)]
    samples = [[(i * i * 41 + 67 * i * n + 90 * n) % 256 for i in range(6)] for n in (1, 2, 3, 4, 1)]
    inputs, classes, digests, tree, rows = [], [], [], [], []
    for number, pixels in enumerate(samples):
        row = model.forward(Inference(lambda kind: (3, 3, 0), 1), 1, parameters, [pixels, None], None, None).rows[0]
        rows.append(b"".join(words([pattern(x)]) for x in row))
        inputs.append(digest_of_bytes([1, 6], pixels))
        classes.append(predicted(row))
        digests.append(tensor_digest([1, 4], [pattern(x) for x in row]))
        tree.append(words([number]) + inputs[-1] + listed([words([classes[-1]])]) + digests[-1])
    assert len(set(classes)) > 1, "one class tells little"
    fields = {"format": "tiebreak predictions 1", "model": derive("tiebreak 2 predicting model", listed(settings)).hex(), "parameters": merkle_root(leaves).hex(),
              "buffers": merkle_root([]).hex(), "classes": 4, "rows": 1, "first": FIRST, "inputs": [digest.hex() for digest in inputs], "predicted": classes,
              "logits": [digest.hex() for digest in digests], "root": merkle_root(tree).hex()}
    text = lambda fields: json.dumps(fields, separators=(",", ":")) + "\n"
    key = Key("classifier.example", bytes([4]) * 32)
    signed = fields | {"signer": key.text()}
    signed |= {"signature": b64(key.sign(b"tiebreak 2 predictions\n" + text(signed).encode()))}
    salt = bytes([9]) * 32
    hidden = derive("tiebreak 2 salted", salt + derive("tiebreak 2 hidden receipt", text(fields).encode()))
    salted = {"format": "tiebreak salted receipt 1", "model": fields["model"], "parameters": fields["parameters"], "salted": hidden.hex(),
              "signer": key.text()}
    salted |= {"signature": b64(key.sign(b"tiebreak 2 salted receipt\n" + text(salted).encode()))}
    opening = text({"format": "tiebreak receipt opening 1", "salt": salt.hex(), "receipt": text(fields)})
    # The signer says another class of the last sample, whose logits lie in one slice.
    wrong = (classes[-1] + 1) % 4
    tree[-1] = words([4]) + inputs[-1] + listed([words([wrong])]) + digests[-1]
    liar = Key("liar.example", bytes([6]) * 32)
    lie = fields | {"predicted": classes[:-1] + [wrong], "root": merkle_root(tree).hex(), "signer": liar.text()}
    lie |= {"signature": b64(liar.sign(b"tiebreak 2 predictions\n" + text(lie).encode()))}
    claim = {"kind": "class", "sample": 4, "row": 0, "slices": [0], "bytes": b64(rows[-1]), "siblings": ""}
    verdict = json.dumps({"answer": 1, "receipt": text(lie), "claim": claim}, separators=(",", ":"))
    networks = pathlib.Path(__file__).parents[1] / "networks"
    encoder, decoder = [json.loads((networks / f"{name}.json").read_text()) for name in ("encoder", "decoder")]
    network = derive("tiebreak 2 predicting model", listed(network_settings(encoder))).hex()
    answering = derive("tiebreak 2 answering model", listed(network_settings(decoder))).hex()
    comment = "Made by predictions.py. `samples`: the pixels of samples 2, 3, .. of some data. `receipt` and `signed`: texts of receipts of their predictions. `verdict`: a verdict on a third. `salted` and `opening`: the first one, salted. `network`: the digest of the model of assets/networks/encoder.json. `answering`: the digest of the model of assets/networks/decoder.json as it answers."
    path = pathlib.Path(__file__).with_name("predictions.json")
    document = {"_comment": comment, "samples": samples, "receipt": text(fields), "signed": text(signed), "verdict": verdict, "salted": text(salted), "opening": opening, "network": network, "answering": answering}
    path.write_text("{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items()) + "\n}\n")


if __name__ == "__main__":
    main()
