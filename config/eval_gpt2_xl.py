"""The loss of OpenAI's gpt2-xl on OpenWebText: 1558M parameters, 48 layers of 25 heads and width 1600.

nanoGPT's README reports 2.56 on train and 2.54 on val, with validation documents drawn by another lot; those
figures are nanoGPT's, not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2-xl"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
