"""The FLOPs of products: 2 m n k for a matrix product, in whatever form XLA has it.

It may be a dot, a convolution (a TPU's form of it, where only the positions that meet count) or a library's
kernel. For causal attention in a fused kernel, only the half that the mask leaves counts; its backward pass
computes five products to the forward's two.
"""

import json
import re

import numpy as np

from tools.planning.program import Computation, Instruction, Shape, balanced, numbers

SPLASH_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}  # matrices multiplied in each of its kernels


def product_flops(x: Instruction, computation: Computation) -> tuple[float, str]:
    """Return the FLOPs of an instruction of a computation, and its operands' type; 0 if it is no product."""
    if x.opcode not in ("dot", "convolution", "custom-call"):
        return 0.0, ""
    shapes = [shape for name in x.operands for shape in computation.by_name[name].shapes]
    if x.opcode == "dot":
        contracted = numbers(x.attribute("lhs_contracting_dims") or "")
        return 2.0 * x.shapes[0].size * size_of(shapes[0], contracted), shapes[0].dtype
    if x.opcode == "convolution":
        return convolution_flops(x, shapes), shapes[0].dtype
    flops = custom_call_flops(x, shapes)
    return flops, shapes[0].dtype if flops else ""


def size_of(shape: Shape, axes: list[int]) -> int:
    return int(np.prod([shape.dims[axis] for axis in axes], dtype=np.int64))


def convolution_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return 2 x batch x input x output features x the pairs of positions that meet, along each axis."""
    lhs, rhs, out = re.split("_|->", x.attribute("dim_labels") or "")
    window = x.attribute("window") or ""
    pairs = 1
    for label in filter(str.isdigit, lhs):  # spatial axes, numbered as in the window
        pairs *= meeting_positions(
            size=shapes[0].dims[lhs.index(label)],
            kernel=shapes[1].dims[rhs.index(label)],
            out=x.shapes[0].dims[out.index(label)],
            stride=window_number(window, "stride", int(label), 1),
            pad=window_number(window, "pad", int(label), 0),
            lhs_dilate=window_number(window, "lhs_dilate", int(label), 1),
            rhs_dilate=window_number(window, "rhs_dilate", int(label), 1),
        )
    batch, features = x.shapes[0].dims[out.index("b")], x.shapes[0].dims[out.index("f")]
    return 2.0 * batch * features * shapes[1].dims[rhs.index("i")] * pairs


def window_number(window: str, name: str, axis: int, default: int) -> int:
    """Return the number of `name=3x1` along an axis of a window; of padding, `pad=0_0x2_1`, the lower."""
    found = re.search(rf"\b{name}=([\d_x-]+)", window)
    return int(found[1].split("x")[axis].split("_")[0]) if found else default


def meeting_positions(size, kernel, out, stride, pad, lhs_dilate, rhs_dilate) -> int:
    """Return how many pairs of an output and a kernel position meet an element of the input."""
    at = np.arange(out)[:, None] * stride + np.arange(kernel)[None] * rhs_dilate - pad
    return int(((at >= 0) & (at % lhs_dilate == 0) & (at < (size - 1) * lhs_dilate + 1)).sum())


def custom_call_flops(x: Instruction, shapes: list[Shape]) -> float:
    """Return the FLOPs of a library's kernel: cuDNN's attention, cuBLAS's product, or Pallas' estimate."""
    target, config = x.target, backend_config(x)
    if target.startswith("__cudnn$fmha"):
        fmha = config["cudnn_fmha_backend_config"]
        B, H, T, S = numbers(str(fmha["intermediate_tensor_shape"]["dimensions"]))
        read = attended(T, S, fmha.get("mask_type", ""), int(fmha.get("sliding_window_length", 0)))
        products = 5 if target.endswith("Backward") else 2
        return 2.0 * products * B * H * read * shapes[0].dims[-1]
    if target.startswith("__cublas$"):
        gemm = config.get("gemm_backend_config", {})
        axes = numbers(str(gemm["dot_dimension_numbers"]["lhs_contracting_dimensions"]))
        return 2.0 * x.shapes[0].size * size_of(shapes[0], axes)
    if found := re.match(r"splash_m[hq]a_(fwd|dq|dkv)", x.name):  # JAX's attention for TPUs, causal here
        q, k, *_ = (shape for shape in shapes if len(shape.dims) > 2 and "f" in shape.dtype)
        T, S = q.dims[-2], k.dims[-2]
        return 2.0 * SPLASH_PRODUCTS[found[1]] * q.size / T * attended(T, S, "CAUSAL", window=0)
    if found := re.search(r'"flops":"?(\d+)', x.text):  # another Pallas kernel: its author's estimate
        return float(found[1])
    return 0.0


def attended(T: int, S: int, mask: str, window: int) -> int:
    """Return how many pairs of a query and a key a kernel computes."""
    if "CAUSAL" not in mask:
        return T * S
    lengths = np.minimum(np.arange(T) + 1, S)
    return int((np.minimum(lengths, window) if window else lengths).sum())


def backend_config(x: Instruction) -> dict:
    start = x.text.find("backend_config={")
    return json.loads(balanced(x.text, start + len("backend_config="))) if start >= 0 else {}
