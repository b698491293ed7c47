"""Plans of a run for devices that are not there."""
