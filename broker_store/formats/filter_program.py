"""The form of a filter that a kernel can run over the properties of a record (broker_store/sql92/program.py
makes it, kernels/judge.py runs it).

    words   ┬ head: the HEAD_* words below
            ├ names: (place in the pool, bytes) of each property that the filter names
            ├ code: instructions of INSTRUCTION_WORDS words, an operation and its operands
            ├ tables: (place in the pool, bytes) of the texts of IN
            ├ slots: room for (address, bytes) of each property of the record, address 0 if absent
            ├ flags: room for a word for each level of AND and OR: 1 if an operand was null
            └ pool: texts in UTF-8

Places of parts are word numbers, places of texts are bytes from the begin of the pool. An instruction leaves
FALSE, TRUE or NULL, and the next one goes on with it.
"""

from __future__ import annotations

HEAD_STEPS = 0  # work of one run at most: instructions and texts of IN
HEAD_NAMES = 1  # number of names
HEAD_NAMES_AT = 2
HEAD_CODE_AT = 3
HEAD_CODE_END = 4
HEAD_SLOTS_AT = 5
HEAD_FLAGS_AT = 6
HEAD_POOL_AT = 7
HEAD_WORDS = 8
INSTRUCTION_WORDS = 6

FALSE, TRUE, NULL = 0, 1, 2

OP_CONSTANT = 0  # result
OP_CAST = 1  # slot: NULL if absent, else FALSE
OP_IS_NULL = 2  # slot
OP_EQUAL_TEXT = 3  # slot, place, bytes, result if absent
OP_EQUAL_PROPERTIES = 4  # slot, slot
OP_EQUAL_BOOLEAN = 5  # slot, TRUE or FALSE
OP_NUMBER = 6  # slot, orders that pass, kind, number (of a double its bits), result if absent
OP_NUMBER_PROPERTIES = 7  # slot, slot, orders that pass
OP_IN = 8  # slot, word number of the texts, their number, 1 for NOT
OP_SEARCH = 9  # slot, kind, place, bytes, 1 for NOT
OP_NOT = 10
OP_BEGIN = 11  # level: clears its flag
OP_AND = 12  # level, instruction to continue at if the operand is FALSE
OP_OR = 13  # level, instruction to continue at if the operand is TRUE
OP_END = 14  # level, result if no operand was null

ORDER_LESS, ORDER_EQUAL, ORDER_GREATER = 1, 2, 4
KIND_INTEGER, KIND_LONG, KIND_DOUBLE = 0, 1, 2
SEARCH_CONTAINS, SEARCH_STARTS, SEARCH_ENDS = 0, 1, 2
