"""Stored files: folders and S3 behind the same few operations."""
