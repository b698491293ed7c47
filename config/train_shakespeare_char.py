"""Train nanoGPT's baby GPT on Shakespeare, character by character, with nanoGPT's hyperparameters.

nanoGPT reports a best validation loss of 1.4697 after about 3 minutes on one A100. The MLP here is SwiGLU
with as many parameters. --mlp=gelu is nanoGPT's, in GPT-2's tanh form; losses of 100 steps then differ from
nanoGPT's by 1.2e-5.
"""

out_dir = "out-shakespeare-char"
eval_interval = 250
eval_iters = 200
log_interval = 10
always_save_checkpoint = False  # keep the best, from before it overfits

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

learning_rate = 1e-3
max_iters = 5000
lr_decay_iters = 5000
min_lr = 1e-4
beta2 = 0.99
warmup_iters = 100
