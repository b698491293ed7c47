"""Weights in Hugging Face's formats: found, read into a GPT, and written."""
