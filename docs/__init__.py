"""The book, the pages beside it, and their figures: all that is no Markdown here serves the pages."""
