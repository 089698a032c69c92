"""The stages of a training whose script is not changed."""
