"""Measurements of bench.py: our step, train.py's loop, PyTorch's step, decoding and serving."""
