"""What a run begins with, by any name that a person gives: models and puzzle sets, made through their stages."""
