"""Whether a store is whole: the check of log, queues, index and timer files, the doctor, and the repair.

A check changes nothing (`walk.py` has its order). The doctor explains each finding (`doctor.py`). A repair
plans first and applies then (`repair/`). The pipeline's audit shares the rules of `rules.py`, `records.py`,
`units.py` and `entries.py`.
"""
