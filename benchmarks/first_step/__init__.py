"""Where the seconds of a first step go."""
