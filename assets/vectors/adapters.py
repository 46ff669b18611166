"""Low-rank adapters of docs/ARITHMETIC.md, section 8.3, from its text alone."""

import fnmatch

from operators import div, f32, map_rows, mul, sqrt
from parameters import Parameter


def is_named(target, module):
    return target == "all-linear" or any(fnmatch.fnmatchcase(module, pattern) for pattern in (target, "*." + target))


class Adapters:
    """`projections`: for each the module, the name of A without its end, the names of the layers, outputs of a layer, and inputs."""

    def __init__(self, model, projections, first_drop):
        lora = model.get("lora", {"targets": []})
        self.projections = [p for p in projections if any(is_named(target, p[0]) for target in lora["targets"])]
        self.rank, self.dropout, self.first_drop = lora.get("rank"), f32(lora.get("dropout", 0.0)), first_drop
        self.scaling = div(f32(lora["alpha"]), float(self.rank)) if self.projections else None

    def parameters(self):
        table = []
        for _, name, layers, outputs, inputs in self.projections:
            bound = div(1.0, sqrt(float(inputs)))
            table.append(Parameter(name + ".lora_a", [self.rank, inputs], ("uniform", bound), True))
            table += [Parameter(layer + ".lora_b", [outputs, self.rank], "zeros", True) for layer in layers]
        return table

    def layers(self, tape, parameters, samples):
        """A function of (name, x, weight, bias): the linear layer with its adapter."""
        p, drop, pairs, inner = iter(parameters), getattr(tape, "drop_of_adapters", None), {}, {}
        for number, (_, _, layers, _, _) in enumerate(self.projections):
            a = next(p)
            pairs |= {layer: (a, next(p), self.first_drop + number) for layer in layers}

        def linear(name, x, weight, bias):
            y = tape.linear(x, weight, bias)
            if name not in pairs:
                return y
            a, b, number = pairs[name]
            if number not in inner:
                inner[number] = tape.linear(tape.dropout(x, drop, number, samples), a, None)
            share = tape.linear(inner[number], b, None)
            times = lambda rows: map_rows(lambda v: mul(v, self.scaling), rows)
            return tape.residual(y, tape.record(times(share.rows), lambda dy: [(share, times(dy))]))

        return linear
