"""Evaluate OpenAI's gpt2-medium (350M) on OpenWebText. nanoGPT reports 2.85 on train and 2.84 on val."""

from config.eval_gpt2 import *

init_from = "gpt2-medium"
