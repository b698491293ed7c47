"""Did a change help? The command that says so, and the evidence behind the defaults."""
