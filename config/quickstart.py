"""Train a first model, in one to six minutes on 2 CPU cores, on this project's own book and code.

The tokens are characters, the model has the modern shape: RoPE, RMSNorm and SwiGLU.
"""

out_dir = "out-quickstart"
eval_interval = 50
eval_iters = 20
keep_checkpoints = 20  # all, of 6.4 MB each: serve.py's page shows the loss of a text at each
log_interval = 10

dataset = "book_char"
gradient_accumulation_steps = 1
batch_size = 8
block_size = 128

n_layer = 3
n_head = 2
n_embd = 128
position = "rope"
norm = "rmsnorm"

optimizer = "muon"
learning_rate = 4e-3
max_iters = 1000
lr_decay_iters = 1000
min_lr = 4e-4
beta2 = 0.99
warmup_iters = 100
qk_norm = True
