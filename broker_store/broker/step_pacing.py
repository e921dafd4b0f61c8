"""How often the steps for delayed and timer messages and transactions run beside other work of the loop."""

# Until the next attempt, after the store or the disk refused.
RETRY_MS = 100
# Until the next step, after all that was due is delivered and all that arrived is read. What becomes due or
# arrives meanwhile is handled together: a group of messages costs hardly more than one.
PAUSE_MS = 5
