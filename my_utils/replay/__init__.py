"""The verdict by replay: operations of all ranks become a graph, and each promise is a replay of it."""
