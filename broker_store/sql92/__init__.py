"""SQL92 filters: expressions over the properties of a message (docs/spec/sql92.md). No files, no clock.

    lexer ──► parser ──► nodes, checked ──┬─► evaluation: closures over a mapping of properties
                                          └─► program: words for the kernel that reads records

`expression.Expression` compiles a text; `property_filter.filter_of` makes of it what a read takes. What an
expression accepts and refuses agrees with Apache's filter in all cases of tests/golden/sql92.jsonl.gz; only
the bounds of length and depth are our own.
"""
