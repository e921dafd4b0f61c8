"""What Apache's DefaultMQAdminExt asks a broker: topics, groups, offsets, connections, statistics
(docs/spec/remoting.md section 5).

Answers have Apache's shapes, so mqadmin and other consoles work. Two things differ on purpose: configuration
cannot be changed over the wire as long as there is no way to tell who asks (docs/durability.md S1), and a
number that was not measured is left out instead of invented.
"""
