"""Measurements of bench.py besides our own step: PyTorch's step, memory and decoding."""
