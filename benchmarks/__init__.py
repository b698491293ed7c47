"""What bench.py can measure besides the step: PyTorch's own step, memory, decoding."""
