"""The verdict by replay: operations as a graph, each promise a replay of it."""
