"""Train a model of 1.3 billion parameters and Llama's shape on FineWeb-Edu. Not yet run.

Layers, width and learning rate are those of GPT-3's 1.3B model (arXiv:2005.14165, table 2.1). The run has 26
billion tokens, 524,288 a step. The same steps on 8 devices, by plan.py 31 GiB of each H100 and 20 hours:

    python data/fineweb_edu/prepare.py
    python train.py config/train_llama_1b.py --mesh=fsdp:8 --batch_size=64 --gradient_accumulation_steps=4
"""

out_dir = "out-llama-1b"
eval_interval = 1000
eval_iters = 100
log_interval = 10

wandb_project = "fineweb-edu"
wandb_run_name = "llama-1b"

dataset = "fineweb_edu"
sampling = "epoch"
batch_size = 8
block_size = 2048
vocab_size = 50304  # GPT-2's 50,257 tokens and a few unused: devices share it evenly
gradient_accumulation_steps = 4 * 8

n_layer = 24
n_head = 16
n_embd = 2048
position = "rope"
norm = "rmsnorm"

learning_rate = 2e-4
min_lr = 2e-5
max_iters = 50000  # 26 billion tokens
lr_decay_iters = 50000
warmup_iters = 1000
