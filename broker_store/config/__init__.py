"""Settings: read and checked once at the start, then passed in parts to the modules that use them.

Nothing reads the environment or a file of settings later. Names are Apache RocketMQ's property names, and a
file in its properties format is read as it is. A key is one of

- *acting*: a field in store.py, broker.py or name_server.py. Its attribute is the key in snake_case; unit,
  reason and limits are beside it, and docs/SETTINGS.md shows them.
- *known, without effect*: Apache has it, and this broker does not use it (`WITHOUT_EFFECT`, with the reason).
  It is accepted, and named in `Settings.notes` when it is set.
- *refused*: a value that requires something that this broker does not do, and whose absence would cause
  unnoticed harm (`REFUSED`).
- anything else stops the start, with the key and the nearest known one.

    setting      what a field states, and its check
    store        settings of the store engine       \
    broker       settings of the broker              tables: one field for each key
    name_server  settings of the name server        /
    other_keys   the keys without effect and the refused values
    properties   files in Java's properties format
    load         all of it, for a process
"""
