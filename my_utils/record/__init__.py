"""What a training script calls to time, to log and to export figures."""
