"""Who may do what: users, policies, signatures, and the demands of each request (docs/spec/access.md).

Nothing here does input or output. `control.py` is what the ports ask.
"""
