"""Trains a small GPT on two ranks, and shows where the time went."""
