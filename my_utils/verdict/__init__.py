"""What bounds a run: which rank, stage or host costs its time, or that nothing stands out."""
