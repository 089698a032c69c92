"""Where every second of a job went: each nanosecond of each rank in exactly one row."""
