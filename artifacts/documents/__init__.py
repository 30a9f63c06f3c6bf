"""JSON and TOML: errors that name the place of a fault, checksums, suggestions for misspelled names."""
