"""Tasks of the package reasoning-gym: its generators ask, its scorers grade."""
