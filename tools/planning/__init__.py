"""Plans of a run for devices that are not there: whether it fits, how fast it can be, and what it costs."""
