"""What a person watches while a run goes on."""
