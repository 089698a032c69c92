"""Who waits for whom in a hang, and who holds up all of them: a graph over the calls of ranks."""
