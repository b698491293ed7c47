"""A server that speaks OpenAI's API: the engine in a thread of its own, and HTTP around it."""
