"""Asks models behind OpenAI-compatible APIs: requests, limits, prices, budgets, and the figures of a benchmark."""
