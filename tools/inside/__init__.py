"""A look inside a model: what its heads read, what each layer would predict, how well it knew a text."""
