"""How fast what waits for its time is taken up and delivered, beside everything else on the loop."""

# After the store or the disk refused.
RETRY_MS = 100
# Who has delivered all that was due, or has taken up all that came, rests so long. What becomes due or comes
# meanwhile goes together: a group costs hardly more than one message.
PAUSE_MS = 5
