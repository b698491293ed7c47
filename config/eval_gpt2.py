"""Evaluate OpenAI's gpt2 (124M) on OpenWebText. nanoGPT reports 3.11 on train and 3.12 on val."""

dataset = "openwebtext"
init_from = "gpt2"
eval_only = True
eval_iters = 500
batch_size = 8
