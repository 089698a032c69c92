"""Timers and their stages, for a training script."""
