"""Benchmarks that a trained model is scored on: their files, and what counts as a right answer."""
