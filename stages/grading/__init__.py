"""The parts of the stage `grade`: judged completions, terms of the reward, and process supervision."""
