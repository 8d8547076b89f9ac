"""What belongs to the process as a whole: its forks, its warnings, its settings, its files."""
