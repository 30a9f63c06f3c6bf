"""Environments with one interface, and the code that several of them share."""
