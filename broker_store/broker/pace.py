"""How fast what waited for its time is delivered, beside everything else on the loop: the same of delay levels and timers."""

# After the store or the disk refused.
RETRY_MS = 100
# Who has delivered all that was due rests so long. What becomes due meanwhile goes together: a group costs hardly more than one message.
PAUSE_MS = 5
