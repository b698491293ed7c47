"""Train the best small model here: the CPU Shakespeare run with what experiments/ladder.toml found to help.

A step takes about 1.3 times as long, so 1,000 steps take less time than its 2,000.
"""

from config.train_shakespeare_char_cpu import *

out_dir = "out-shakespeare-char-best"

position = "rope"
mlp = "relu2"
qk_norm = True

optimizer = "muon"
learning_rate = 4e-3
max_iters = 1000
lr_decay_iters = 1000
min_lr = 4e-4
