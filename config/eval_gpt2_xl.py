"""Evaluate OpenAI's gpt2-xl (1558M) on OpenWebText. nanoGPT reports 2.56 on train and 2.54 on val."""

dataset = "openwebtext"
init_from = "gpt2-xl"
eval_only = True
eval_iters = 500
batch_size = 8
