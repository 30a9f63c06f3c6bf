"""The compute type in which this machine is fast."""
