"""Evaluate OpenAI's gpt2-large (774M) on OpenWebText. nanoGPT reports 2.66 on train and 2.67 on val."""

dataset = "openwebtext"
init_from = "gpt2-large"
eval_only = True
eval_iters = 500
batch_size = 8
