"""Train on TinyStories with a laptop's CPU: sentences of a child, rather than stories. Not yet run.

python data/tinystories/prepare.py --limit=100000
python train.py config/train_tinystories_cpu.py
"""

from config.train_tinystories import *

out_dir = "out-tinystories-cpu"
eval_interval = 500
eval_iters = 20
wandb_run_name = "tinystories-cpu"

batch_size = 8
block_size = 128

n_layer = 4
n_head = 4
n_embd = 128

learning_rate = 2e-3
max_iters = 5000
lr_decay_iters = 5000
min_lr = 2e-4
beta2 = 0.99
warmup_iters = 100
