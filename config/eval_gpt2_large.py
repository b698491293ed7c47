"""Evaluate OpenAI's gpt2-large (774M) on OpenWebText. nanoGPT reports 2.66 on train and 2.67 on val."""

from config.eval_gpt2 import *

init_from = "gpt2-large"
