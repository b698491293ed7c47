"""Train a smaller baby GPT on a laptop's CPU. nanoGPT's README reports a validation loss of 1.88."""

out_dir = "out-shakespeare-char-cpu"
eval_interval = 250
eval_iters = 20
always_save_checkpoint = False

dataset = "shakespeare_char"
gradient_accumulation_steps = 1
batch_size = 12
block_size = 64

n_layer = 4
n_head = 4
n_embd = 128
dropout = 0.0

learning_rate = 1e-3
max_iters = 2000
lr_decay_iters = 2000
min_lr = 1e-4
beta2 = 0.99
warmup_iters = 100
