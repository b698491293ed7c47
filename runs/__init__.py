"""A run: how it starts, what it keeps, and the machine under it."""
