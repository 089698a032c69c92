"""Who waits for whom in a hang, and who holds all of them up: a graph over the calls of all ranks."""
