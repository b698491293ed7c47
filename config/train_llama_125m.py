"""Train a model of GPT-2's size and Llama's shape, to compare with train_gpt2_fineweb.py. Not yet run.

The same steps on 8 devices:

    python data/fineweb_edu/prepare.py
    python train.py config/train_llama_125m.py --batch_size=96 --gradient_accumulation_steps=5
"""

out_dir = "out-llama-125m"
eval_interval = 500
log_interval = 10

wandb_project = "fineweb-edu"
wandb_run_name = "llama-125m"

dataset = "fineweb_edu"
sampling = "epoch"  # each window once
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8

position = "rope"
norm = "rmsnorm"

max_iters = 20000  # 9.8 billion tokens
lr_decay_iters = 20000
warmup_iters = 700
