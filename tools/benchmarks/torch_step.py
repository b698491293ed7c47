"""The training step in PyTorch, as nanoGPT writes it; `python bench.py --vs=torch` measures against it.

The model and the step are those of `model.py` and `training/step.py`, option by option; a test holds the two
to the same loss, moments and weights. As in nanoGPT, attention and AdamW are fused, and autocast and
`torch.compile` are used. The learning rate is constant, which changes no time.
"""

import math
import os
import sys
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from config.options import Options
from model import GPTConfig


class GPT(nn.Module):
    """`model.GPT`, with PyTorch's (out, in) layout of linear weights and one module per block."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd) if config.position == "learned" else None
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = Norm(config, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=config.residual_std if name.endswith("c_proj.weight") else 0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy; tokens and targets are (B, T)."""
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = Norm(config, config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = Norm(config, config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CausalSelfAttention(nn.Module):
    cos: Tensor  # buffers, with rope
    sin: Tensor

    def __init__(self, config: GPTConfig):
        super().__init__()
        D, C = config.n_embd, config.head_size
        self.config = config
        self.c_attn = nn.Linear(D, D + 2 * config.kv_heads * C, bias=config.bias)
        self.c_proj = nn.Linear(D, D, bias=config.bias)
        self.q_norm = Norm(config, C) if config.qk_norm else nn.Identity()
        self.k_norm = Norm(config, C) if config.qk_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        if config.position == "rope":
            frequencies = config.rope_theta ** (-torch.arange(0, C, 2) / C)
            angles = torch.arange(config.block_size)[:, None] * frequencies  # (T, C/2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        H, K, C = self.config.n_head, self.config.kv_heads, self.config.head_size
        q, k, v = self.c_attn(x).split((D, K * C, K * C), dim=2)
        q = self.q_norm(q.view(B, T, H, C).transpose(1, 2))  # (B, H, T, C)
        k = self.k_norm(k.view(B, T, K, C).transpose(1, 2))
        v = v.view(B, T, K, C).transpose(1, 2)
        if self.config.position == "rope":
            q, k = self.rotate(q), self.rotate(k)
        if K < H:
            k, v = k.repeat_interleave(H // K, dim=1), v.repeat_interleave(H // K, dim=1)
        dropout = self.config.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.drop(self.c_proj(y.transpose(1, 2).reshape(B, T, D)))

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.size(2)], self.sin[: x.size(2)]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.kind, hidden = config.mlp, config.hidden
        width = 2 * hidden if self.kind == "swiglu" else hidden
        self.c_fc = nn.Linear(config.n_embd, width, bias=config.bias)
        self.c_proj = nn.Linear(hidden, config.n_embd, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.c_fc(x)
        if self.kind == "swiglu":
            gate, h = h.chunk(2, dim=-1)
            h = F.silu(gate) * h
        else:
            h = F.gelu(h, approximate="tanh") if self.kind == "gelu" else F.relu(h).square()
        return self.drop(self.c_proj(h))


class Norm(nn.Module):
    def __init__(self, config: GPTConfig, size: int):
        super().__init__()
        self.center = config.norm == "layernorm"
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if config.bias and self.center else None

    def forward(self, x: Tensor) -> Tensor:
        if self.center:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)
        return F.rms_norm(x.float(), self.weight.shape, self.weight, 1e-5)


class TorchStep:
    """One variant of the step: `step(x, y)`, both int64 (A, B, T), trains and returns the mean loss."""

    def __init__(self, config: GPTConfig, options: Options, dtype="float32", compiled=False, device="cpu"):
        self.options, self.device = options, device
        self.model = GPT(config).to(device)
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
                {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            fused=True,
        )
        self.forward = torch.compile(self.model) if compiled else self.model
        half = torch.autocast(device_type=device, dtype=torch.bfloat16)
        self.context = half if dtype == "bfloat16" else nullcontext()

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        mean = torch.zeros((), device=self.device)
        for tokens, targets in zip(x, y, strict=True):
            tokens = tokens.to(self.device, non_blocking=True)
            targets = targets.to(self.device, non_blocking=True)
            with self.context:
                loss = self.forward(tokens, targets) / len(x)
            loss.backward()
            mean += loss.detach()
        if self.options.grad_clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return mean


def answer(connection: Connection, config: GPTConfig, options: Options, *variant) -> None:
    """Answer each number of steps from the connection with seconds per step, or with what is wrong.

    `variant` is dtype, compiled and device of `TorchStep`.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # torch.compile writes pages when it fails
    torch.set_num_threads(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    torch.backends.cuda.matmul.allow_tf32 = True  # as nanoGPT does, and as JAX does by default
    torch.manual_seed(0)
    shape = (2, options.gradient_accumulation_steps, options.batch_size, options.block_size)
    try:
        step = TorchStep(config, options, *variant)
        batches = [torch.randint(config.vocab_size, shape) for _ in range(4)]
        batches = [batch.pin_memory() for batch in batches] if step.device == "cuda" else batches
        while True:
            connection.send(seconds_per_step(step, batches, connection.recv()))
    except EOFError:  # nobody asks any more
        pass
    except Exception as error:  # torch.compile raises all sorts of things where it cannot compile
        connection.send(in_few_words(error))


def seconds_per_step(step: TorchStep, batches: list[Tensor], n: int) -> float:
    start = time.perf_counter()
    for i in range(n):
        loss = step(*batches[i % len(batches)])
    if not math.isfinite(loss.item()):  # .item() waits for the device
        raise RuntimeError("the loss is not finite")
    seconds = (time.perf_counter() - start) / n
    if step.device == "cuda":
        torch.cuda.empty_cache()  # the other variants share the card
    return seconds


def in_few_words(error: Exception) -> str:
    """Find the line of an error that says what is wrong; torch.compile puts its backend's name before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.endswith("raised:")]
    return telling[0][:100] if telling else type(error).__name__
