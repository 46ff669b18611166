"""Native kernels of a trainer of the logged profile: those of the engines by name, and PyTorch's."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, List, Optional, Tuple

from ._call import options, text
from ._errors import UsageError

# The name, and the function that multiplies.
Kernel = Tuple[str, Callable[[Any, Any, Any], None]]
# (address of a tensor, its words, offset, dims, strides)
Operand = Tuple[int, int, int, List[int], List[int]]
# cuBLAS would compute in lower precisions, for which no bound is proved.
EMULATION = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")


def kernel_of(native: Any, native_device: Any, device: Any) -> Tuple[List[str], Optional[Kernel]]:
    """The words of the option, or PyTorch's kernel."""
    native = None if native is None else text("native", native)
    if native != "torch":
        if native_device is not None:
            raise UsageError(f"native_device is {native_device!r:.60}", 'native_device is PyTorch\'s device: give native="torch" too, or leave it out')
        return options(native=native), None
    if device != "cpu":
        help = 'leave device out: PyTorch multiplies where native_device says, such as native_device="cuda", and the CPU does the rest'
        raise UsageError(f'native="torch" is given beside device={device!r:.60}', help)
    kernel = TorchKernel("cpu" if native_device is None else native_device)
    return [], (kernel.name, kernel)


class TorchKernel:
    """Products by torch.mm, torch.bmm or torch.matmul on a device."""

    def __init__(self, device: Any) -> None:
        try:
            import torch
        except ImportError as error:
            raise UsageError(f'native="torch" needs PyTorch: {error}', "pip install torch, or leave native out") from None
        self.torch = torch
        self.device = _device(torch, device)
        self.name = f"PyTorch {torch.__version__} on {self.device}"

    def __call__(self, a: Operand, b: Operand, out: Tuple[int, bool]) -> None:
        torch = self.torch
        address, is_double = out
        dims = [*a[3][:3], b[3][2]]
        # Grids finer than bfloat16 have sums in binary64. On the bfloat16 grid the operands are bfloat16 numbers in binary32 tensors.
        kind = torch.float64 if is_double else torch.float32
        with torch.inference_mode():
            sums = _tensor(torch, address, dims[0] * dims[1] * dims[2] * dims[3], kind).view(dims)
            left, right = self._moved(a, kind), self._moved(b, kind).transpose(2, 3)
            self.multiply(left, right, sums)

    def multiply(self, a: Any, b: Any, sums: Any) -> None:
        """Writes the products of `a` [B0, B1, M, K] and `b` [B0, B1, K, N] to `sums` in main memory."""
        torch, is_here = self.torch, self.device.type == "cpu"
        batches = [side.squeeze(0) if side.shape[0] == 1 else side.squeeze(1) for side in (a, b, sums)]
        if batches[0].dim() == 4:
            multiply, (a, b, to) = torch.matmul, (a, b, sums)
        elif batches[0].shape[0] == 1:
            multiply, (a, b, to) = torch.mm, [side[0] for side in batches]
        else:
            multiply, (a, b, to) = torch.bmm, batches
        if is_here:
            multiply(a, b, out=to)
        else:
            to.copy_(multiply(a, b))

    def _moved(self, operand: Operand, kind: Any) -> Any:
        """An operand as a tensor on the device: without a copy where that is main memory and the sums are in binary32."""
        address, words, offset, dims, strides = operand
        tensor = _tensor(self.torch, address, words, self.torch.float32)
        return tensor.as_strided(dims, strides, offset).to(self.device).to(kind)


def _tensor(torch: Any, address: int, count: int, kind: Any) -> Any:
    """The numbers at an address, as a tensor that shares them."""
    size = count * (8 if kind == torch.float64 else 4)
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=kind)


def _device(torch: Any, given: Any) -> Any:
    """A device on which PyTorch has sums in binary64."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"native_device is {given!r:.60}: {str(error).splitlines()[0][:200]}", 'give native_device as "cpu" or "cuda"') from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"native_device is {given!r:.60}", 'give native_device as "cpu" or "cuda"; other devices lack sums in binary64, or were never tried')
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"native_device is {given!r:.60}, and PyTorch finds no CUDA device", 'give native_device="cpu", or install PyTorch for CUDA')
        if asked := [name for name in EMULATION if os.environ.get(name)]:
            raise UsageError(f"the environment has {asked[0]}", "unset it: no bound is known for products that are emulated in lower precisions")
    return device
