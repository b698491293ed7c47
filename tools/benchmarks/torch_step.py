"""The training step in PyTorch, as nanoGPT writes it, for `bench.py --vs=torch`.

A test holds it to the loss, moments and weights of our own step. As in nanoGPT, attention and AdamW are
fused, and autocast and `torch.compile` are used. The learning rate is constant, and layers begin with the
weights that PyTorch gives them, which changes no time.
"""

import math
import os
import sys
import time
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.devices import count_cpus
from common.errors import UserError
from config.options import Options
from model import GPTConfig


class GPT(nn.Module):
    """`model.GPT`, with PyTorch's (out, in) layout of linear weights and one module per block."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.n_layer)))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy; tokens and targets are (B, T)."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.blocks(self.drop(self.wte(tokens) + self.wpe(positions)))
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        D = config.n_embd
        self.config = config
        self.c_attn = nn.Linear(D, 3 * D, bias=config.bias)
        self.c_proj = nn.Linear(D, D, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        heads = (B, T, self.config.n_head, self.config.head_size)
        q, k, v = (y.view(heads).transpose(1, 2) for y in self.c_attn(x).chunk(3, dim=2))  # (B, H, T, C)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.config.dropout, is_causal=True)
        return self.drop(self.c_proj(y.transpose(1, 2).reshape(B, T, D)))


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
            h = F.gelu(h, approximate="tanh")
        return self.drop(self.c_proj(h))


class TorchStep:
    """One variant of the step: `step(x, y)`, both int64 (A, B, T), trains and returns the mean loss."""

    def __init__(self, config: GPTConfig, options: Options, dtype="float32", compiled=False, device="cpu"):
        self.options, self.device = options, device
        self.model = GPT(config).to(device)
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        decayed = {"params": matrices, "weight_decay": options.weight_decay}
        groups = [decayed, {"params": vectors, "weight_decay": 0.0}]
        betas = (options.beta1, options.beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=betas, fused=True)
        self.forward = torch.compile(self.model) if compiled else self.model
        self.half = torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        mean = torch.zeros((), device=self.device)
        x = x.to(self.device, non_blocking=True)
        y = y.to(self.device, non_blocking=True)
        for tokens, targets in zip(x, y, strict=True):
            with self.half:
                loss = self.forward(tokens, targets) / len(x)
            loss.backward()
            mean += loss.detach()
        if self.options.grad_clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return mean


@cache
def prepare(config: GPTConfig, options: Options, *variant) -> tuple[TorchStep, list[Tensor]]:
    """Make the step of a process, and its batches. `variant` is dtype, compiled and device of `TorchStep`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # torch.compile writes pages when it fails
    torch.set_num_threads(count_cpus())
    torch.backends.cuda.matmul.allow_tf32 = True  # as nanoGPT does, and as JAX does by default
    torch.manual_seed(0)
    step = TorchStep(config, options, *variant)
    shape = (2, options.gradient_accumulation_steps, options.batch_size, options.block_size)
    batches = [torch.randint(config.vocab_size, shape) for _ in range(4)]
    return step, [batch.pin_memory() for batch in batches] if step.device == "cuda" else batches


def seconds_per_step(n: int, *variant) -> float:
    """Measure n steps of a variant, which is `prepare`'s arguments. Raises UserError."""
    try:
        step, batches = prepare(*variant)
        start = time.perf_counter()
        for i in range(n):
            loss = step(*batches[i % len(batches)])
        if not math.isfinite(loss.item()):  # .item() waits for the device
            raise UserError("the loss is not finite")
        seconds = (time.perf_counter() - start) / n
        if step.device == "cuda":
            torch.cuda.empty_cache()  # the other variants share the card
    except Exception as error:  # torch.compile raises all sorts of things where it cannot compile
        raise UserError(f"{type(error).__name__}: {str(error)[:200]}") from None
    return seconds
