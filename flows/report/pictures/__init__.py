"""Draws the pictures of reports as PNG."""
