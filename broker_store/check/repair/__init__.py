"""The repair of a damaged store: a plan of single actions, and their execution.

    check ──► plan: actions in order, what stays as it is ──► apply: copy kept, change, sync, one after the
                                                              other ──► recovery

The log decides what exists, so it is repaired first. The engine's own recovery then builds queues and index
from it. What was readable before stays readable, at its place in its queue and by its key:

* A *tail* that holds no good record is cut.
* A *damaged stretch* with good records after it is bridged: nothing may move in a log, and no broker steps
  over what is no record. Where a queue knows a record there, a *placeholder* takes its place in log and
  queue: a message without body or keys whose property REPAIRED says why. (It is as long as the record was:
  more than properties hold are zeros in its body; one with less than 11 bytes for properties has no room for
  it.) So no number of a queue is missing, which neither broker accepts. The rest is filled with
  records that were "rolled back": they are in no queue and in no index. At the end of a file a blank does.
* A sound record that states another queue or number than the unit that points to it gets those of the unit.
* A missing log file between others is made again, from placeholders and a blank.
* A file whose content states another place than its name is renamed, where that place is free, and set aside
  where it is not (`check/places.py`). All other actions are planned for the store as it is then.

A timer log that is not sound is moved away with its wheel: the next start reads what waits from the queue of
timer messages (docs/decisions/0035).

What is changed or taken away is first copied or moved to `lost+found/TIME-repair/`, where `manifest.json`
lists what came from where. Before the log is changed, `abort` exists and the checkpoint states that nothing
is synced. So a repair that ends in the middle is, to the next check or start, an ordinary crash, and the same
plan or a smaller one repairs the rest (docs/decisions/0030).

`plan.py` has the order of a plan, `apply.py` executes it. `actions.py` has the actions, each a type; the
other modules plan those of one part of a store.
"""
