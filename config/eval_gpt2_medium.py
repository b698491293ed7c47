"""The loss of OpenAI's gpt2-medium on OpenWebText: 350M parameters, 24 layers of 16 heads and width 1024.

nanoGPT's README reports 2.85 on train and 2.84 on val, with validation documents drawn by another lot; those
figures are nanoGPT's, not yet run here.
"""

dataset = "openwebtext"
init_from = "gpt2-medium"
eval_only = True
eval_iters = 500  # more than in training, for a better estimate
batch_size = 8
