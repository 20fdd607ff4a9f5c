"""The laboratory: studies and benchmarks of surgicalmamba. It adds `study` and `bench` to the command
line."""
