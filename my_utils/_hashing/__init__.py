"""Digests of batches and of tensors that are sharded over ranks."""
