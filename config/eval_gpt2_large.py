"""Evaluate OpenAI's gpt2-large on OpenWebText: 774M parameters, 36 layers of 20 heads and width 1280.

nanoGPT's README reports a loss of 2.66 on train and 2.67 on val, with other documents for
validation than this project draws. The evaluation is not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2-large"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
