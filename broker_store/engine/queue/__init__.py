"""Consume queues, and the topics that were deleted."""
