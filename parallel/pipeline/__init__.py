"""Pipeline parallelism: the schedule as a table, the loop that runs it, and its timeline in print."""
