"""Values and routes of REST: problems, documents of messages, answers about messages as values, callers,
repeated requests, hot routes."""
