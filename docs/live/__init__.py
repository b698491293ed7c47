"""The quickstart's model for the chapters that open it: its data, and the command that makes their page."""
