"""Train nanoGPT's baby GPT on Shakespeare, character by character, with nanoGPT's hyperparameters.

nanoGPT reports a best validation loss of 1.4697 after about 3 minutes on one A100. The MLP here is SwiGLU
with as many parameters. --mlp=gelu is nanoGPT's, in GPT-2's tanh form: over the 100 steps of warmup, losses
differed from those of nanoGPT's exact form by 1.2e-5.
"""

out_dir = "out-shakespeare-char"
eval_interval = 250  # often, because a model of this size soon overfits on so small a text
eval_iters = 200
log_interval = 10
always_save_checkpoint = False  # keep the best checkpoint, from before the model overfits

wandb_project = "shakespeare-char"
wandb_run_name = "mini-gpt"

dataset = "shakespeare_char"
gradient_accumulation_steps = 1
batch_size = 64
block_size = 256  # characters of context

n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2

learning_rate = 1e-3  # small models train well at a high rate
max_iters = 5000
lr_decay_iters = 5000
min_lr = 1e-4
beta2 = 0.99  # a longer average, because a step sees few tokens
warmup_iters = 100
