"""Evaluate OpenAI's gpt2-medium on OpenWebText: 350M parameters, 24 layers of 16 heads and width 1024.

nanoGPT's README reports a loss of 2.85 on train and 2.84 on val, with other documents for
validation than this project draws. The evaluation is not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2-medium"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
