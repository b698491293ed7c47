"""Train a model of GPT-2's size and Llama's shape, to compare with train_gpt2_fineweb.py. Not yet run.

The same steps on 8 devices:

    python data/fineweb_edu/prepare.py
    python train.py config/train_llama_125m.py --batch_size=96 --gradient_accumulation_steps=5
"""

from config.train_gpt2_fineweb import *

out_dir = "out-llama-125m"
wandb_run_name = "llama-125m"

position = "rope"
norm = "rmsnorm"
mlp = "swiglu"
