"""The tables of parameters that models of docs/ARITHMETIC.md, section 8.3, have: names, shapes, initial values, decay."""


class Parameter:
    def __init__(self, name, shape, init, decay):
        self.name, self.shape, self.init, self.decay = name, shape, init, decay


def weight(name, shape, std):
    return Parameter(name, shape, std, True)


def norm(name, channels):
    return [Parameter(name + ".gain", [channels], "ones", False), Parameter(name + ".bias", [channels], "zeros", False)]


def linear(name, outputs, inputs, std):
    return [weight(name + ".weight", [outputs, inputs], std), Parameter(name + ".bias", [outputs], "zeros", False)]
