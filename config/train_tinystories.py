"""Train a model of 51 million parameters that tells children's stories, in an hour on one GPU. Not yet run.

python data/tinystories/prepare.py
python train.py config/train_tinystories.py
python sample.py --out_dir=out-tinystories --start="Once upon a time"
"""

out_dir = "out-tinystories"
eval_interval = 1000
eval_iters = 100
log_interval = 10

wandb_project = "tinystories"
wandb_run_name = "tinystories"

dataset = "tinystories"
sampling = "epoch"
gradient_accumulation_steps = 1
batch_size = 64
block_size = 512  # longer than nearly every story

n_layer = 8
n_head = 8
n_embd = 512
position = "rope"
norm = "rmsnorm"

learning_rate = 1e-3
max_iters = 20000
lr_decay_iters = 20000
min_lr = 1e-4
warmup_iters = 500
