"""The parts of the stage `grade`: graded completions, rewards of a judge or a user, and process supervision."""
