"""What model.py is made of and a first reading skips: each file is one idea, and imports nothing of ours."""
