"""Engines side by side: how each is started, loaded with weights and replaced, and how calls are spread over them."""
