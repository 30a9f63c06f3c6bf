"""JSON and TOML: read with the place of each fault, sealed by a checksum, with hints at misspelt names."""
