"""Formats text for people: escapes invisible characters, writes Markdown, breaks lines."""
