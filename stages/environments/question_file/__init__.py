"""Questions with one answer each, from a file of the user."""
