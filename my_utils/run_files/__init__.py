"""What the processes of a run leave in its log directory, read by others."""
