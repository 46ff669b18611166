"""How often the paper's thresholds miss a value that two native kernels round apart (docs/ROUNDING.md, section 6).

    python3 -m venv venv && venv/bin/pip install torch
    venv/bin/python benches/paper_misses.py [--k 768] [--values 2e9]

Two kernels sum the same products in binary64: one in the library's order, one first the even places of K and then the odd ones. Operands are normally distributed
binary32 numbers. Both round to binary32. A value that they round apart is *missed* if the first result is further than a quarter of binary32's step from the
boundary between two roundings, so that a trainer who logs by the paper's thresholds does not log it. Prints the counts, and how small the missed values are beside
the standard deviation of all values.
"""

import argparse

import torch

ROWS, COLUMNS = 512, 3072


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, default=768, help="terms of each sum")
    parser.add_argument("--values", type=float, default=2e9, help="how many results, at least")
    options = parser.parse_args()
    normal = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=normal).double()
    values, apart, missed = 0, 0, []
    while values < options.values:
        a, b = draw(ROWS, options.k), draw(options.k, COLUMNS)
        one, other = a @ b, a[:, 0::2] @ b[0::2] + a[:, 1::2] @ b[1::2]
        values += one.numel()
        differ = one.float() != other.float()
        if not differ.any():
            continue
        x = one[differ].abs()
        step = torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent - 24)
        from_boundary = ((x / step).frac() - 0.5).abs()
        apart += x.numel()
        missed += (x[from_boundary > 0.25 - 2.0**-24] / one.std()).tolist()
    per = 262.9e6 / values
    print(f"{values} values, K = {options.k}: {apart} rounded apart, {len(missed)} missed; of 262.9 million values, a step of GPT-2 124M: {apart * per:.1f} and {len(missed) * per:.2f}")
    if missed:
        print(f"the greatest that was missed is {max(missed):.1e} of the standard deviation")


if __name__ == "__main__":
    main()
