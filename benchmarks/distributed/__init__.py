"""What a training step costs that several devices share, beside other ways to share it."""
