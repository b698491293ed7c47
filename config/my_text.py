"""Train on a text of your own, of 100 KB or more, for as many steps as the quickstart. First prepare it:

    python data/train_tokenizer.py --source=mine.txt --to=my-tokenizer --vocab_size=512
    python data/prepare.py --source=mine.txt --to=data/my_text --tokenizer=my-tokenizer

The model is the quickstart's, with normalised queries and keys.
"""

from config.quickstart import *

out_dir = "out-my-text"
dataset = "my_text"

always_save_checkpoint = False  # a short text is learned by heart: then only the best is kept
dropout = 0.1
qk_norm = True
