"""From a trained model to text: decoding with a key/value cache, and sampling the next token."""
