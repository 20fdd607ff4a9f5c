"""Live recognition: sources, sessions, estimates, sinks and snapshots."""
