"""Weights in from Hugging Face's format, and out to it."""
