"""Train the smallest GPT-2 (124M parameters) for one epoch on FineWeb-Edu's 10 billion tokens. Not yet run.

A step has 491,520 tokens. The same on 8 devices:

    python data/fineweb_edu/prepare.py
    python train.py config/train_gpt2_fineweb.py --batch_size=96 --gradient_accumulation_steps=5
"""

out_dir = "out-gpt2-fineweb"
eval_interval = 500
log_interval = 10

wandb_project = "fineweb-edu"
wandb_run_name = "gpt2-124M"

dataset = "fineweb_edu"
sampling = "epoch"  # each window once
batch_size = 12
block_size = 1024
vocab_size = 50304  # GPT-2's 50,257 tokens and a few unused, as nanoGPT has it: devices share it evenly
gradient_accumulation_steps = 5 * 8

mlp = "gelu"  # GPT-2's

max_iters = 20000  # 9.8 billion tokens
lr_decay_iters = 20000
warmup_iters = 700
