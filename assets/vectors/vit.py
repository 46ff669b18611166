"""The model `vit` of docs/ARITHMETIC.md, section 8.3, from the text alone. Shares no code with us."""

import encoders
from operators import Tensor, f32
from parameters import Parameter, linear, norm, weight


class Vit:
    labels = 1

    def __init__(self, m, pixel):
        self.height, self.width, self.planes, self.patch = m["height"], m["width"], m["planes"], m["patch"]
        self.layers, self.heads, self.channels, self.hidden = m["layers"], m["heads"], m["channels"], m["hidden"]
        self.classes, self.biased, self.gelu = m["classes"], m.get("qkv_bias", True), m.get("gelu", "erf")
        self.dropout, self.attention_dropout = f32(m.get("dropout", 0.0)), f32(m.get("attention_dropout", 0.0))
        self.std, self.epsilon = f32(m.get("init_std", 0.02)), f32(m.get("norm_epsilon", 1e-12))
        self.down, self.across = self.height // self.patch, self.width // self.patch
        self.pixel = pixel

    def parameters(self):
        c, std = self.channels, self.std
        table = [Parameter("class_token", [c], std, False), weight("position_embedding", [self.down * self.across + 1, c], std)]
        table += linear("patch_embedding", c, self.patch * self.patch * self.planes, std)
        for layer in range(self.layers):
            name = f"block{layer}."
            table += norm(name + "norm1", c)
            for part in ("query", "key", "value", "attention_out"):
                table += linear(name + part, c, c, std)[:2 if self.biased or part == "attention_out" else 1]
            table += norm(name + "norm2", c)
            table += linear(name + "mlp_in", self.hidden, c, std) + linear(name + "mlp_out", c, self.hidden, std)
        return table + norm("final_norm", c) + linear("classifier", self.classes, c, std)

    def draw(self, rng, samples):
        pixels = [rng.randrange(256) for _ in range(samples * self.planes * self.height * self.width)]
        return [pixels, [rng.randrange(self.classes) for _ in range(samples)]]

    def patches(self, samples, pixels):
        rows = []
        for b in range(samples):
            for i in range(self.down):
                for j in range(self.across):
                    row = []
                    for y in range(i * self.patch, (i + 1) * self.patch):
                        for x in range(j * self.patch, (j + 1) * self.patch):
                            for c in range(self.planes):
                                row.append(self.pixel(pixels[((b * self.planes + c) * self.height + y) * self.width + x], c))
                    rows.append(row)
        return Tensor(rows)

    def forward(self, tape, samples, parameters, batch, factor, drop):
        p = iter(parameters)
        dropped = lambda x, number: tape.dropout(x, drop, number, samples)
        normed = lambda x: tape.layer_norm(x, next(p), next(p), self.epsilon)
        gelu = lambda x: tape.gelu_tanh(x) if self.gelu == "tanh" else tape.gelu_erf(x)
        token, positions = next(p), next(p)
        x = tape.linear(self.patches(samples, batch[0]), next(p), next(p))
        x = encoders.class_token(tape, x, token, samples)
        x = dropped(encoders.position_embedding(tape, x, positions, samples), 0)
        for layer in range(self.layers):
            u = normed(x)
            q, k, v = (tape.linear(u, next(p), next(p) if self.biased else None) for _ in range(3))
            a = tape.attention(q, k, v, samples, self.heads, tape.drop_of_scores, 3 * layer + 1, False)
            y = dropped(tape.linear(a, next(p), next(p)), 3 * layer + 2)
            x = tape.residual(y, x)
            u = normed(x)
            y = gelu(tape.linear(u, next(p), next(p)))
            y = dropped(tape.linear(y, next(p), next(p)), 3 * layer + 3)
            x = tape.residual(y, x)
        x = normed(encoders.first_position(tape, x, samples))
        return tape.loss(tape.linear(x, next(p), next(p), "head"), batch[1], factor)
