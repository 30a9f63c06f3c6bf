"""Zebra grids: who lives in which house of a row, with which pet, drink, colour and hobby."""
