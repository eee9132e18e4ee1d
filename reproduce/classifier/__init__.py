"""Training of the packaged classifiers, and of those whose gradients the papers attack."""
