"""The commands of Apache's mqadmin, without Java: the same names, options and lines, for brokers of either
kind (docs/MQADMIN.md).

Each module has the commands of one subject. `command` has what a command is, `servers` what it may ask,
`run` the choice of a command and its output.
"""
