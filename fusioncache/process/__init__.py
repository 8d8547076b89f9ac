"""What belongs to the process as a whole: its forks, its warnings, and which Thunder it has."""
