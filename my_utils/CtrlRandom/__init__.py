"""Compatibility package; the code is in `my_utils.tensors.random_states`."""
