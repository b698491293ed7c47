"""Answers to questions, and what they are worth: for rl.py, which learns from them, and evaluate.py --tasks."""
