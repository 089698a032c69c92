"""Where two recordings part: aligned, searched and told."""
