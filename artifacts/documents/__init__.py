"""JSON and TOML: errors that name the faulty place, checksums, suggestions for misspelled names."""
