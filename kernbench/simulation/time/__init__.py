"""What ranks wait for in virtual time: the queue of those that wait, timeouts, polls, files, turns of threads."""
