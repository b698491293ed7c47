"""Evaluate OpenAI's gpt2 on OpenWebText: 124M parameters, 12 layers of 12 heads and width 768.

nanoGPT's README reports a loss of 3.11 on train and 3.12 on val, with other documents for
validation than this project draws. The evaluation is not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
