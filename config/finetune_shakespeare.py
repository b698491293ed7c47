"""Finetune GPT-2 on Shakespeare with nanoGPT's hyperparameters, in minutes on one large GPU. Not yet run.

If memory is short, give --init_from=gpt2. Then: python sample.py --out_dir=out-shakespeare
"""

out_dir = "out-shakespeare"
eval_interval = 5
eval_iters = 40
always_save_checkpoint = False

wandb_project = "shakespeare"
wandb_run_name = "ft"

dataset = "shakespeare"
init_from = "gpt2-xl"

# 9.2 steps of 32 x 1,024 tokens read the text once.
batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20

learning_rate = 3e-5
decay_lr = False
