"""The requests of Apache's DefaultMQAdminExt: topics, groups, offsets, connections, statistics
(docs/spec/remoting.md section 5).

Answers have the shapes of Apache's, so that mqadmin and other consoles work. Two things differ on purpose.
Only settings of a list can be changed over the wire (docs/durability.md S1). A number that is not measured is
left out.
"""
