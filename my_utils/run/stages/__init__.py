"""The stages of a training whose script knows nothing of them."""
