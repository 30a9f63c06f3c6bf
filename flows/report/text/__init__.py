"""Text made safe and fitted for people: visible characters, Markdown, line width."""
