"""Stored files: folders, memory and S3 behind the same few operations."""
