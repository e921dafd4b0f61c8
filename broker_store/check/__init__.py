"""Whether a store is whole: the walk over log, queues, index and timer files, what it finds, and its repair.

A check changes nothing (`walk.py`). A repair plans first and applies then (`repair.py`). The rules of both,
and of the pipeline's audit, are in `rules.py`.
"""
