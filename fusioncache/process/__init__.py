"""Process-wide services: forks, warnings, settings, files, garbage collection, and hiding of secrets."""
