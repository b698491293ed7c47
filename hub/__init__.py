"""Weights in Hugging Face's formats: read and written."""
