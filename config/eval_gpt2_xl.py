"""Evaluate OpenAI's gpt2-xl (1558M) on OpenWebText. nanoGPT reports 2.56 on train and 2.54 on val."""

from config.eval_gpt2 import *

init_from = "gpt2-xl"
