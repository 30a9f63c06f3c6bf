"""The compute type that this machine is fast at."""
