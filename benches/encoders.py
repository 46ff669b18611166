"""Encoders in PyTorch, on weights under this project's names and in its layouts: BERT's and DistilBERT's classifiers, and a vision transformer.

`gradient_error.py` compares their gradients. Each has SAMPLES, a table of parameters (name, shape, standard deviation or, of vectors, the value) as
docs/ARITHMETIC.md, section 8.3, lists them, and a forward pass. Nothing is dropped.
"""

import torch
import torch.nn.functional as F

WIDTH, HEADS, LAYERS, HIDDEN, CLASSES, STD, EPSILON = 64, 4, 2, 256, 10, 0.02, 1e-12


def linear(w, x, name):
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def norm(w, x, name):
    return F.layer_norm(x, (WIDTH,), w[f"{name}.gain"], w[f"{name}.bias"], EPSILON)


def attention(w, x, block):
    """Over all positions."""
    shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = (linear(w, x, f"{block}.{name}").view(shape).transpose(1, 2) for name in ("query", "key", "value"))
    return linear(w, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape), f"{block}.attention_out")


def feed_forward(w, x, block):
    return linear(w, F.gelu(linear(w, x, f"{block}.mlp_in")), f"{block}.mlp_out")


def layer(name, outputs, inputs):
    return [(f"{name}.weight", (outputs, inputs), STD), (f"{name}.bias", (outputs,), 0)]


def norm_table(name):
    return [(f"{name}.gain", (WIDTH,), 1), (f"{name}.bias", (WIDTH,), 0)]


def attention_table(block):
    return sum((layer(f"{block}.{name}", WIDTH, WIDTH) for name in ("query", "key", "value", "attention_out")), [])


def feed_forward_table(block):
    return layer(f"{block}.mlp_in", HIDDEN, WIDTH) + layer(f"{block}.mlp_out", WIDTH, HIDDEN)


class Bert:
    """A classifier over the first position. DistilBERT's has no token types, and relu in place of tanh."""

    SAMPLES, CONTEXT, VOCABULARY = 16, 32, 256

    def __init__(self, form):
        self.form = form

    def table(self):
        table = [("token_embedding", (self.VOCABULARY, WIDTH), STD), ("position_embedding", (self.CONTEXT, WIDTH), STD)]
        table += [("type_embedding", (2, WIDTH), STD)] if self.form == "bert" else []
        table += norm_table("embedding_norm")
        for block in (f"block{number}" for number in range(LAYERS)):
            table += attention_table(block) + norm_table(f"{block}.norm1") + feed_forward_table(block) + norm_table(f"{block}.norm2")
        return table + layer("pooler", WIDTH, WIDTH) + layer("classifier", CLASSES, WIDTH)

    def forward(self, w, ids):
        x = w["token_embedding"][ids]
        x = norm(w, (x + w["type_embedding"][0] if self.form == "bert" else x) + w["position_embedding"], "embedding_norm")
        for block in (f"block{number}" for number in range(LAYERS)):
            x = norm(w, attention(w, x, block) + x, f"{block}.norm1")
            x = norm(w, feed_forward(w, x, block) + x, f"{block}.norm2")
        x = linear(w, x[:, 0], "pooler")
        return linear(w, torch.tanh(x) if self.form == "bert" else F.relu(x), "classifier")


class Vit:
    SAMPLES, RECORD, PATCH, SIDE, PLANES = 16, 3073, 8, 32, 3

    def table(self):
        patches, inputs = (self.SIDE // self.PATCH) ** 2, self.PATCH * self.PATCH * self.PLANES
        table = [("class_token", (WIDTH,), STD), ("position_embedding", (patches + 1, WIDTH), STD), *layer("patch_embedding", WIDTH, inputs)]
        for block in (f"block{number}" for number in range(LAYERS)):
            table += norm_table(f"{block}.norm1") + attention_table(block) + norm_table(f"{block}.norm2") + feed_forward_table(block)
        return table + norm_table("final_norm") + layer("classifier", CLASSES, WIDTH)

    def forward(self, w, x):
        kernel = w["patch_embedding.weight"].view(WIDTH, self.PATCH, self.PATCH, self.PLANES).permute(0, 3, 1, 2)
        x = F.conv2d(x, kernel, w["patch_embedding.bias"], self.PATCH).flatten(2).transpose(1, 2)
        x = torch.cat([w["class_token"].expand(len(x), 1, WIDTH), x], 1) + w["position_embedding"]
        for block in (f"block{number}" for number in range(LAYERS)):
            x = attention(w, norm(w, x, f"{block}.norm1"), block) + x
            x = feed_forward(w, norm(w, x, f"{block}.norm2"), block) + x
        return linear(w, norm(w, x[:, 0], "final_norm"), "classifier")
