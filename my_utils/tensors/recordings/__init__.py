"""Records the inputs and outputs of each module of a model."""
