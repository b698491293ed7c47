"""GPT-2 learns to write like Shakespeare, with nanoGPT's own hyperparameters: minutes on one large GPU.

nanoGPT gives no loss for this run, and it is not yet run here. If memory is short, take a smaller model:

    python train.py config/finetune_shakespeare.py --init_from=gpt2
    python sample.py --out_dir=out-shakespeare
"""

out_dir = "out-shakespeare"
eval_interval = 5
eval_iters = 40
always_save_checkpoint = False  # so that what is kept is from before the overfitting

wandb_project = "shakespeare"
wandb_run_name = "ft"

dataset = "shakespeare"
init_from = "gpt2-xl"  # the largest GPT-2

# 32 x 1,024 tokens are in a step: the 301,966 of the text last for 9.2 steps.
batch_size = 1
gradient_accumulation_steps = 32
max_iters = 20

learning_rate = 3e-5
decay_lr = False
