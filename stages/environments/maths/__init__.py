"""Mathematical problems with one final answer, compared by value."""
