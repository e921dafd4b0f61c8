"""The dashboard's port: connections and their limits, who asks and what they may do, answers, and live
numbers."""
