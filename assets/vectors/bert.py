"""The model `bert` of docs/ARITHMETIC.md, section 8.3, and the masking of its tokens, section 6, from the text alone. Shares no code with us.

    python3 assets/vectors/bert.py > assets/vectors/masked.json

prints samples of tokens after the masking of some places.
"""

import json
import random
from fractions import Fraction

import encoders
from contract import philox
from operators import f32
from parameters import linear, norm, weight


class Bert:
    def __init__(self, m):
        self.vocabulary, self.context, self.hidden = m["vocabulary"], m["context"], m["hidden"]
        self.layers, self.heads, self.width = m["layers"], m["heads"], m["width"]
        self.types, self.padding = m.get("token_types"), m.get("padding")
        self.drops_attended = m.get("form", "bert") == "bert"
        self.dropout, self.attention_dropout = f32(m.get("dropout", 0.0)), f32(m.get("attention_dropout", 0.0))
        self.gelu, self.std, self.epsilon = m.get("gelu", "erf"), f32(m.get("init_std", 0.02)), f32(m.get("norm_epsilon", 1e-12))
        self.classes = m.get("classes")
        assert f32(m.get("classifier_dropout", 0.0)) in (0.0, self.dropout), "steps.py draws by one probability"
        self.drops_pooled = "classifier_dropout" in m
        self.labels = 1 if self.classes else self.context

    def parameters(self):
        c, std = self.width, self.std
        table = [weight("token_embedding", [self.vocabulary, c], std), weight("position_embedding", [self.context, c], std)]
        table += [weight("type_embedding", [self.types, c], std)] if self.types else []
        table += norm("embedding_norm", c)
        for layer in range(self.layers):
            name = f"block{layer}."
            table += [p for part in ("query", "key", "value", "attention_out") for p in linear(name + part, c, c, std)]
            table += norm(name + "norm1", c) + linear(name + "mlp_in", self.hidden, c, std)
            table += linear(name + "mlp_out", c, self.hidden, std) + norm(name + "norm2", c)
        if self.classes:
            return table + linear("pooler", c, c, std) + linear("classifier", self.classes, c, std)
        return table + linear("transform", c, c, std) + norm("transform_norm", c) + linear("head", self.vocabulary, c, std)[1:]

    def draw(self, rng, samples):
        """Every third token is learned on the average; the label of all others is that of the padding, or 0. A sequence with a class
        has at least one token before its padding."""
        if self.classes:
            return self.sequences(rng, samples)
        tokens = [rng.randrange(self.vocabulary) for _ in range(samples * self.context)]
        return [tokens, [rng.randrange(1, self.vocabulary) if rng.randrange(3) == 0 else self.padding or 0 for _ in tokens]]

    def sequences(self, rng, samples):
        ids = []
        for _ in range(samples):
            tokens = [rng.choice([n for n in range(self.vocabulary) if n != self.padding]) for _ in range(self.context)]
            length = self.context if self.padding is None else rng.randrange(1, self.context + 1)
            ids += tokens[:length] + [self.padding] * (self.context - length)
        return [ids, [rng.randrange(self.classes) for _ in range(samples)]]

    def forward(self, tape, samples, parameters, batch, factor, drop):
        p = iter(parameters)
        dropped = lambda x, number: tape.dropout(x, drop, number, samples)
        normed = lambda x: tape.layer_norm(x, next(p), next(p), self.epsilon)
        gelu = lambda x: tape.gelu_tanh(x) if self.gelu == "tanh" else tape.gelu_erf(x)
        tokens, positions = next(p), next(p)
        x = tape.embedding(tokens, batch[0]) if self.padding is None else encoders.padded_embedding(tape, tokens, batch[0], self.padding)
        x = encoders.position_embedding(tape, x, next(p), len(x.rows)) if self.types else x
        x = dropped(normed(encoders.position_embedding(tape, x, positions, samples)), 0)
        for layer in range(self.layers):
            q, k, v = (tape.linear(x, next(p), next(p)) for _ in range(3))
            a = self.attention(tape, q, k, v, samples, batch[0], tape.drop_of_scores, 3 * layer + 1)
            y = tape.linear(a, next(p), next(p))
            y = dropped(y, 3 * layer + 2) if self.drops_attended else y
            x = normed(tape.residual(y, x))
            y = gelu(tape.linear(x, next(p), next(p)))
            y = dropped(tape.linear(y, next(p), next(p)), 3 * layer + 3)
            x = normed(tape.residual(y, x))
        if self.classes:
            first = encoders.first_position(tape, x, samples)
            pooled = tape.linear(first, next(p), next(p))
            pooled = encoders.hyperbolic_tangent(tape, pooled) if self.drops_attended else tape.relu(pooled)
            pooled = dropped(pooled, 3 * self.layers + 1) if self.drops_pooled else pooled
            return tape.loss(tape.linear(pooled, next(p), next(p), "head"), batch[1], factor)
        x = normed(gelu(tape.linear(x, next(p), next(p))))
        return tape.loss(tape.linear(x, tokens, next(p), "head"), batch[1], factor)

    def attention(self, tape, q, k, v, samples, ids, drop, number):
        if self.padding is None:
            return tape.attention(q, k, v, samples, self.heads, drop, number, False)
        assert drop is None, "padded_attention of encoders.py draws nothing"
        return encoders.padded_attention(tape, q, k, v, samples, self.heads, ids, self.padding)


def threshold(p):
    return round(Fraction(f32(p)) * 2**32)


def masked(tokens, key, step, place, vocabulary, masking, uncounted):
    """The inputs and the labels of a sample."""
    inputs, labels = [], []
    for i, token in enumerate(tokens):
        w = philox(key, (step, place, i, 0xFFFFFFF9))
        learned = token != uncounted and token not in masking["never"] and w[0] < threshold(masking["probability"])
        labels.append(token if learned else uncounted)
        a = threshold(masking["mask_share"])
        b = a + threshold(masking["random_share"])
        other = masking["token"] if w[1] < a else w[2] * vocabulary >> 32 if w[1] < b else token
        inputs.append(other if learned else token)
    return inputs, labels


def main():
    rng, cases = random.Random(20261129), []
    shares = [(0.15, 0.8, 0.1), (0.5, 0.8, 0.1), (1.0, 0.3, 0.4), (1.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.3, 0.0, 0.0), (1.0, 0.8, 0.2)]
    for probability, mask_share, random_share in shares:
        for key, step, place in (((0x12345678, 0x9ABCDEF0), 1, 0), ((0x12345678, 0x9ABCDEF0), 67108863, 16777215), ((0, 0), 0, 3)):
            vocabulary = rng.choice((30, 1000, 1 << 20))
            tokens = [rng.randrange(min(vocabulary, 12)) for _ in range(40)]
            masking = {"probability": probability, "token": vocabulary - 1, "mask_share": mask_share, "random_share": random_share, "never": [1, 2]}
            inputs, labels = masked(tokens, key, step, place, vocabulary, masking, 0)
            cases.append({"key": key, "step": step, "place": place, "vocabulary": vocabulary, "uncounted": 0, **masking,
                          "tokens": tokens, "inputs": inputs, "labels": labels})
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


if __name__ == "__main__":
    main()
