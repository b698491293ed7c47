"""Pipeline parallelism: the schedule as a table, and the loop that runs it."""
