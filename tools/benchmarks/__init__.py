"""Measurements of bench.py: our step, PyTorch's, what XLA counts of it, decoding and serving."""
