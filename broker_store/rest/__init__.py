"""Values and routes of REST: problems, documents of messages, callers, repeated requests, hot routes."""
