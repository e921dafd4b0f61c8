"""Problems, documents of messages, callers, repeated requests, hot routes: values and routes of REST."""
