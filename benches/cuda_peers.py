"""The peers of the CUDA engine's benchmark, on the same GPU.

    python3 benches/cuda_peers.py [--small] >> LINES

Prints a JSON object a line as it measures: PyTorch's (cuBLAS') products in fp32, TF32, bf16 and int8; cuBLASLt's int8 products with the best of its
heuristics' algorithms and 32 MiB of workspace, which `torch._int_mm` need not take; a step of the same GPT-2 in bf16 autocast and in fp32, eager, with fused
attention; that attention alone in bf16 and fp32. What could not be measured is a line with a reason. `benches/cuda_report.py` sets it beside the engine's.
"""

import ctypes
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    torch = None

SMALL = "--small" in sys.argv
SIDE, TOKENS, CONTEXT = (64, 96, 16) if SMALL else (8192, 8192, 1024)
SHAPES = [(SIDE, SIDE, SIDE), (TOKENS, 768, 768), (TOKENS, 2304, 768), (TOKENS, 3072, 768), (TOKENS, 768, 3072)]


def say(kind, **what):
    print(json.dumps({"kind": kind, **what}), flush=True)


def tried(kind, measure, **what):
    """Says what a function returns, a dictionary, or why it could not."""
    try:
        say(kind, **what, **measure())
    except Exception as error:  # whatever it is, the others are still to be measured
        say(kind, **what, reason=f"{type(error).__name__}: {error}"[:300])


def median(run, rounds=5, each=5):
    """Median seconds of a run, after a round that warms up; synchronised, so that launches count too."""
    times = []
    for number in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(each):
            run()
        torch.cuda.synchronize()
        if number:
            times.append((time.perf_counter() - begin) / each)
    return statistics.median(times)


def products(m, n, k):
    """Seconds of A (m, k) times B (n, k) transposed, by kind."""
    found = {}
    a, b = (torch.rand(rows, k, device="cuda") * 2 - 1 for rows in (m, n))
    for name, tf32 in (("fp32", False), ("TF32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[name] = median(lambda: a @ b.T)
    torch.backends.cuda.matmul.allow_tf32 = False
    half_a, half_b = a.bfloat16(), b.bfloat16()
    found["bf16"] = median(lambda: half_a @ half_b.T)
    bytes_a, bytes_b = ((x * 127).to(torch.int8) for x in (a, b))
    try:
        found["int8"] = median(lambda: torch._int_mm(bytes_a, bytes_b.T))
    except RuntimeError as error:
        say("peer_int8", m=m, n=n, k=k, reason=str(error)[:300])
    return found


def light(m, n, k, workspace_bytes=32 << 20, algorithms=16):
    """Seconds of cuBLASLt's product of int8 rows A (m, k) and B (n, k) to int32: the best of the algorithms that its heuristics name.

    Types, orders and numbers are those of cublasLt.h (CUDA 12 and 13): CUDA_R_8I is 3, CUDA_R_32I 10, CUBLAS_COMPUTE_32I 72.
    """
    major = torch.version.cuda.split(".")[0]
    library = ctypes.CDLL(f"libcublasLt.so.{major}")  # PyTorch has opened it, so its name is enough

    def call(name, *arguments):
        status = getattr(library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")

    def attribute(name, handle, number, value):
        call(name, handle, number, ctypes.byref(value), ctypes.sizeof(value))

    a, b = (torch.randint(-127, 128, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
    output = torch.empty((m, n), device="cuda", dtype=torch.int32)
    workspace = torch.empty(workspace_bytes, device="cuda", dtype=torch.uint8)
    handle, operation, preference = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cublasLtCreate", ctypes.byref(handle))
    call("cublasLtMatmulDescCreate", ctypes.byref(operation), 72, 10)
    # Columns are contiguous there, so the rows' product is B's transposed times A: CUBLASLT_MATMUL_DESC_TRANSA (3) is CUBLAS_OP_T (1).
    attribute("cublasLtMatmulDescSetAttribute", operation, 3, ctypes.c_int32(1))
    layouts = []
    for kind, rows, columns, leading in ((3, k, n, k), (3, k, m, k), (10, n, m, n)):
        layout = ctypes.c_void_p()
        call(
            "cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind, ctypes.c_uint64(rows), ctypes.c_uint64(columns),
            ctypes.c_int64(leading),
        )
        layouts.append(layout)
    call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES is 1.
    attribute("cublasLtMatmulPreferenceSetAttribute", preference, 1, ctypes.c_uint64(workspace_bytes))

    class Heuristic(ctypes.Structure):
        _fields_ = [
            ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("status", ctypes.c_int),
            ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
        ]

    found, count = (Heuristic * algorithms)(), ctypes.c_int()
    left, right, out = layouts
    call(
        "cublasLtMatmulAlgoGetHeuristic", handle, operation, left, right, out, out, preference, algorithms, found,
        ctypes.byref(count),
    )
    one, zero = ctypes.c_int32(1), ctypes.c_int32(0)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run(algorithm):
        call(
            "cublasLtMatmul", handle, operation, ctypes.byref(one), ctypes.c_void_p(b.data_ptr()), left,
            ctypes.c_void_p(a.data_ptr()), right, ctypes.byref(zero), ctypes.c_void_p(output.data_ptr()), out,
            ctypes.c_void_p(output.data_ptr()), out, ctypes.byref(algorithm), ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_size_t(workspace_bytes), stream,
        )

    usable = [result for result in found[: count.value] if result.status == 0]
    if not usable:
        raise RuntimeError(f"its heuristics know no algorithm for {m} x {n} x {k}")
    times = [median(lambda: run(result.algorithm), rounds=3) for result in usable]
    row, column = m // 2, n // 3
    expected = int((a[row].long() * b[column].long()).sum())
    run(usable[times.index(min(times))].algorithm)
    if int(output[row, column]) != expected:
        raise RuntimeError(f"a wrong product: {int(output[row, column])} for {expected}")
    seconds = min(times)
    return {"seconds": seconds, "tops": 2 * m * n * k / seconds / 1e12, "algorithms": len(usable)}


def attention(samples, heads, positions, channels):
    """Seconds of causal attention with its gradients, in bf16 and in fp32."""
    found = []
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v, dy = (torch.randn(samples, heads, positions, channels, device="cuda", dtype=dtype) for _ in range(4))
        inputs = [x.requires_grad_() for x in (q, k, v)]

        def run():
            y = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
            torch.autograd.grad(y, inputs, dy)

        found.append(median(run))
    return found


class Block(torch.nn.Module if torch else object):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(torch.nn.Module if torch else object):
    def __init__(self, vocabulary=50257, context=1024, layers=12, heads=12, width=768):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def step(autocast, micro_batch, micro_batches, context=1024):
    """Seconds of a training step of GPT-2 124M: AdamW, clipping, accumulation as in the engine's benchmark."""
    torch.manual_seed(1)
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, 50257, (micro_batch, context), device="cuda")

    def run():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(micro_batches):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(tokens, tokens)
            (loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    seconds = median(run, rounds=3, each=1)
    del model, optimizer
    torch.cuda.empty_cache()
    return seconds


def main():
    if torch is None or not torch.cuda.is_available():
        say("peers", reason="there is no PyTorch here" if torch is None else "PyTorch finds no GPU")
        return
    say("peers", library=f"PyTorch {torch.__version__}", gpu=torch.cuda.get_device_name())
    # What informs most first.
    for shape in (SHAPES[0], SHAPES[1]):
        tried("peer_lt", lambda: light(*shape), **dict(zip("mnk", shape)))
    for autocast in (True, False):
        kind = "bf16 autocast" if autocast else "fp32"
        sizes = {"micro_batch": 8, "micro_batches": 4}
        tried("peer_step", lambda: {"seconds": step(autocast, **sizes, context=CONTEXT)}, precision=kind, **sizes)
    for shape in SHAPES:
        tried("peer_product", lambda: {"seconds": products(*shape)}, **dict(zip("mnk", shape)))
    shape = (8, 12, CONTEXT, 64)
    names = ("samples", "heads", "positions", "channels")
    tried("peer_attention", lambda: {"seconds": attention(*shape)}, **dict(zip(names, shape)))
    for shape in SHAPES[2:]:
        tried("peer_lt", lambda: light(*shape), **dict(zip("mnk", shape)))


if __name__ == "__main__":
    main()
