"""The parts of a run: when what held."""
