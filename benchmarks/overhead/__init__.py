"""What fusioncache costs: a call's host time, and the seconds from a region to its key."""
