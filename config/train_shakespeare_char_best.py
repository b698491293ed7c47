"""Train the best small model here: the CPU Shakespeare run with what experiments/ladder.py found to help.

A step takes about 1.3 times as long, so 1,000 steps take less time than its 2,000.
"""

out_dir = "out-shakespeare-char-best"
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
position = "rope"
mlp = "relu2"
qk_norm = True

optimizer = "muon"
learning_rate = 4e-3
max_iters = 1000
lr_decay_iters = 1000
min_lr = 4e-4
beta2 = 0.99
warmup_iters = 100
