"""The requests of Apache's DefaultMQAdminExt: topics, groups, offsets, connections, statistics
(docs/spec/remoting.md section 5).

Answers have the shapes of Apache's, so that mqadmin and other consoles work. Two things differ on purpose.
The configuration cannot be changed over the wire, because the broker cannot authenticate the sender
(docs/durability.md S1). A number that is not measured is left out.
"""
