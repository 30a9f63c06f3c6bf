"""What this machine computes with: its GPUs and their builds, and the compute type in which it is fast."""
