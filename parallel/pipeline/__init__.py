"""Pipeline parallelism: the schedule as a table, its timeline in print, and the loop that runs it."""
