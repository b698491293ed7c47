"""GPT-2's smallest (124M parameters) from scratch on OpenWebText, with nanoGPT's own hyperparameters.

nanoGPT reports a loss of about 2.85 after 4 days on a node of 8 A100 of 40 GB; that figure is nanoGPT's, not
yet run here. There are 491,520 tokens in a step and 300 billion in the run. On 8 devices, the same step:

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
gradient_accumulation_steps = 5 * 8

mlp = "gelu"  # GPT-2's, as in nanoGPT

max_iters = 600000
lr_decay_iters = 600000
weight_decay = 1e-1
