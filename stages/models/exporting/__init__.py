"""Checkpoints as files that other programs read: Hugging Face folders, PEFT adapters, GGUF. No torch."""
