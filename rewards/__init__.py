"""Answers to questions, and what they are worth: rl.py learns from them, evaluate.py --tasks counts them."""
