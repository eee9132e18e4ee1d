"""What the five papers claim, and whether the kept results bear it out."""
