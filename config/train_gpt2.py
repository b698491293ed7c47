"""Train the smallest GPT-2 (124M parameters) on OpenWebText, with nanoGPT's hyperparameters.

nanoGPT reports a loss of about 2.85 after 4 days on 8 A100s; it is not yet run here. A step has 491,520
tokens. The same on 8 devices:

    python data/openwebtext/prepare.py
    python train.py config/train_gpt2.py --batch_size=96 --gradient_accumulation_steps=5
"""

out_dir = "out-gpt2"
eval_interval = 1000
eval_iters = 200
log_interval = 10

wandb_project = "owt"
wandb_run_name = "gpt2-124M"

dataset = "openwebtext"
batch_size = 12
block_size = 1024
vocab_size = 50304  # GPT-2's 50,257 tokens and a few unused, as nanoGPT has it: devices share it evenly
gradient_accumulation_steps = 5 * 8

mlp = "gelu"  # GPT-2's

max_iters = 600000
lr_decay_iters = 600000
weight_decay = 1e-1
