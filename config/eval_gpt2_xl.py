"""Evaluate OpenAI's gpt2-xl on OpenWebText: 1558M parameters, 48 layers of 25 heads and width 1600.

nanoGPT's README reports a loss of 2.56 on train and 2.54 on val, with other documents for
validation than this project draws. The evaluation is not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2-xl"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
