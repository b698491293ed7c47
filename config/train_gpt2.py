"""Train the smallest GPT-2 (124M parameters) from scratch on OpenWebText, with nanoGPT's hyperparameters.

nanoGPT reports a loss of about 2.85 after 4 days on a node of 8 A100s of 40 GB; this project has not run it
yet. A step has 491,520 tokens, and the run 300 billion. To take the same steps on 8 devices:

    python data/openwebtext/prepare.py
    python train.py config/train_gpt2.py --batch_size=96 --gradient_accumulation_steps=5

The GELU is GPT-2's, the tanh form; nanoGPT's `nn.GELU()` is the exact one. Over 100 steps from equal weights,
losses differed from those of nanoGPT's own code by 1.2e-5, and by 1.7e-6 with the tanh form there too. That
is within a warmup to 1e-3: at twice the rate after a short warmup, they differ by 3e-4 to 2e-3.
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

mlp = "gelu"  # as in GPT-2, and nearly as in nanoGPT: see above

max_iters = 600000
lr_decay_iters = 600000
weight_decay = 1e-1
