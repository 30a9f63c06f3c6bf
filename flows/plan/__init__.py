"""What a recipe needs on a machine that nobody has rented yet: memory, time and price, by arithmetic."""
