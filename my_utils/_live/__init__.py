"""What a running job does now, from the files of its ranks."""
