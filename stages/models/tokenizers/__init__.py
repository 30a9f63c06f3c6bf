"""Tokenizers and chat templates of model folders: text to token ids and back."""
