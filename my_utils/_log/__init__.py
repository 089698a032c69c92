"""The text log and the events of the user's own: arguments, settings and handlers."""
