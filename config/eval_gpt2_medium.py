"""Evaluate OpenAI's gpt2-medium (350M) on OpenWebText. nanoGPT reports 2.85 on train and 2.84 on val."""

dataset = "openwebtext"
init_from = "gpt2-medium"
eval_only = True
eval_iters = 500
batch_size = 8
