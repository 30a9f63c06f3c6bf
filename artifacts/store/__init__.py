"""Stored files: folders and S3 with the same few operations."""
