"""Finetune GPT-2 on Shakespeare with nanoGPT's hyperparameters. It takes minutes on one large GPU.

nanoGPT gives no loss for this run, and it is not yet run here. If memory is short, choose a smaller model:

    python train.py config/finetune_shakespeare.py --init_from=gpt2
    python sample.py --out_dir=out-shakespeare
"""

out_dir = "out-shakespeare"
eval_interval = 5
eval_iters = 40
always_save_checkpoint = False  # keep the best checkpoint, from before the model overfits

wandb_project = "shakespeare"
wandb_run_name = "ft"

dataset = "shakespeare"
init_from = "gpt2-xl"  # the largest GPT-2

# A step has 32 x 1,024 tokens, so 9.2 steps use as many tokens as the text has (301,966).
batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20

learning_rate = 3e-5
decay_lr = False
