"""Merges of checkpoints: methods on tensors, and checkpoints merged tensor by tensor in a child process."""
