"""Finds and removes large files that no rule keeps."""
