"""What a store reports of itself: positions, flags, files, samples over time, the live page."""
