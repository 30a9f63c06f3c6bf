"""Engines side by side: start, weights, loss and return of each, and the calls spread over them."""
