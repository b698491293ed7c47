"""The FLOPs of products: 2 m n k for a matrix product, in whatever form XLA has it.

Of causal attention in a fused kernel, only the half that the mask leaves counts.
"""

import json
import math
import re

import numpy as np

from tools.planning.program import Instruction, Shape, numbers

SPLASH_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}  # matrices multiplied in each of its kernels


def product_flops(x: Instruction) -> tuple[float, str]:
    """Return the FLOPs of an instruction, or of what it calls, and its operands' type; 0 if no product."""
    if x.opcode in ("fusion", "call"):
        within = [product_flops(y) for called in x.called("calls", "to_apply") for y in called.instructions]
        return sum(flops for flops, _ in within), next((of for _, of in reversed(within) if of), "")
    shapes = [shape for operand in x.operands for shape in operand.shapes]
    flops = 0.0
    if x.opcode == "dot":
        flops = dot_flops(x, shapes[0], numbers(x.attribute("lhs_contracting_dims") or ""))
    elif x.opcode == "convolution":
        flops = convolution_flops(x, *shapes)
    elif x.opcode == "custom-call":
        flops = library_flops(x, shapes)
    return flops, shapes[0].dtype if flops else ""


def dot_flops(x: Instruction, lhs: Shape, contracted: list[int]) -> float:
    return 2.0 * x.shapes[0].size * math.prod(lhs.dims[axis] for axis in contracted)


def convolution_flops(x: Instruction, lhs: Shape, rhs: Shape) -> float:
    """Return the FLOPs of a TPU's form of a product: 2 x the length of each axis where it is longest."""
    lhs_labels, rhs_labels, out_labels = re.split("_|->", x.attribute("dim_labels") or "")
    out = x.shapes[0].dims
    flops = 2.0 * out[out_labels.index("b")] * out[out_labels.index("f")] * rhs.dims[rhs_labels.index("i")]
    for axis in filter(str.isdigit, lhs_labels):  # a batch's is in all three arrays, another in one or two
        within = ((lhs.dims, lhs_labels), (rhs.dims, rhs_labels), (out, out_labels))
        flops *= max(dims[labels.index(axis)] for dims, labels in within)
    return flops


def library_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return the FLOPs of a library's kernel: cuDNN's attention, cuBLAS's product, or Pallas' estimate."""
    if x.target.startswith("__cudnn$fmha"):
        fmha = json.loads(x.attribute("backend_config") or "")["cudnn_fmha_backend_config"]
        B, H, T, S = numbers(str(fmha["intermediate_tensor_shape"]["dimensions"]))
        pairs = attended(T, S, fmha.get("mask_type", ""), int(fmha.get("sliding_window_length", 0)))
        products = 5 if x.target.endswith("Backward") else 2
        return 2.0 * products * B * H * pairs * shapes[0].dims[-1]
    if x.target.startswith("__cublas$"):
        gemm = json.loads(x.attribute("backend_config") or "")["gemm_backend_config"]
        contracted = gemm["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        return dot_flops(x, shapes[0], numbers(str(contracted)))
    if found := re.match(r"splash_m[hq]a_(fwd|dq|dkv)", x.name):  # JAX's attention for TPUs, causal here
        q, k, *_ = (shape for shape in shapes if len(shape.dims) > 2 and "f" in shape.dtype)
        T, S = q.dims[-2], k.dims[-2]
        return 2.0 * SPLASH_PRODUCTS[found[1]] * q.size / T * attended(T, S, "CAUSAL", window=0)
    found = re.search(r'"flops":"?(\d+)', x.text)  # another Pallas kernel: its author's estimate
    return float(found[1]) if found else 0.0


def attended(T: int, S: int, mask: str, window: int) -> int:
    """Return how many pairs of a query and a key a kernel computes."""
    if "CAUSAL" not in mask:
        return T * S
    lengths = np.minimum(np.arange(T) + 1, S)
    return int((np.minimum(lengths, window) if window else lengths).sum())
