"""Judge: run the program of a filter over the properties of a record (formats/filter_program.py).

First one walk over the properties notes where each named one lies; of two equal names the last counts. Then
the instructions run. What is not read here exactly as Java reads it gives VERDICT_NONE, and Python judges the
record: numbers that are long, have an exponent or are no plain decimals, and texts with invalid UTF-8 where
that could matter.
"""

from __future__ import annotations

from broker_store.formats import filter_program as p
from broker_store.kernels import context as c
from broker_store.kernels.memory import as_double, find_byte, get, inlined, load_u8, put, same_bytes
from broker_store.kernels.record_head import NAME_END, PROPERTY_END

_PLUS, _MINUS, _POINT, _ZERO, _NINE = 43, 45, 46, 48, 57
_ASCII = 128
_INT_MAX = 2**31 - 1
_MAX_DIGITS = 18  # of a whole number: fits 64 bits
_MAX_PRECISION = 15  # digits of a decimal that a double holds exactly
_MAX_SCALE = 22  # powers of ten that a double holds exactly
# Above this product of lengths Python searches a text in a text: its time is linear.
_MAX_SEARCHED = 16384
_TRUE_TEXT = int.from_bytes(b"true", "little")
_LOWER = 0x20202020

# What reading a number gives beside it.
_READ = 0
_ERROR = 1
_UNSURE = 2

# What an instruction gives beside FALSE, TRUE and NULL.
_FAILED = 3
_ASK = 4


@inlined
def _find_slots(program, properties, length):
    """Note address and bytes of each named property in the slots."""
    names, count = program + 8 * get(program, p.HEAD_NAMES_AT), get(program, p.HEAD_NAMES)
    slots, pool = program + 8 * get(program, p.HEAD_SLOTS_AT), program + 8 * get(program, p.HEAD_POOL_AT)
    for number in range(count):
        put(slots, 2 * number, 0)
    at, end = properties, properties + length
    while at < end:
        stop = find_byte(at, end, PROPERTY_END)
        mark = find_byte(at, stop, NAME_END)
        if mark > at and mark + 1 < stop:
            size = mark - at
            for number in range(count):
                if get(names, 2 * number + 1) == size and same_bytes(pool + get(names, 2 * number), at, size):
                    put(slots, 2 * number, mark + 1)
                    put(slots, 2 * number + 1, stop - mark - 1)
                    break
        at = stop + 1


@inlined
def _is_ascii(at, length):
    for number in range(length):
        if load_u8(at + number) >= _ASCII:
            return False
    return True


@inlined
def _read_whole(at, length, is_long):
    """Return (_READ, _ERROR or _UNSURE, number) as Integer.valueOf or Long.valueOf of Java."""
    if not _is_ascii(at, length):
        return _UNSURE, 0
    end = at + length
    first = load_u8(at)
    is_negative = first == _MINUS
    if is_negative or first == _PLUS:
        at += 1
    if at == end:
        return _ERROR, 0
    value = 0
    digits = end - at
    while at < end:
        digit = load_u8(at) - _ZERO
        if digit < 0 or digit > 9:
            return _ERROR, 0
        if digits <= _MAX_DIGITS:
            value = value * 10 + digit
        at += 1
    if digits > _MAX_DIGITS:
        return _UNSURE, 0
    if is_negative:
        value = -value
    if not is_long and (value > _INT_MAX or value < -_INT_MAX - 1):
        return _ERROR, 0
    return _READ, value


@inlined
def _read_double(at, length):
    """Return (_READ or _UNSURE, number) as Double.valueOf of Java, for short decimals."""
    end = at + length
    first = load_u8(at)
    is_negative = first == _MINUS
    if is_negative or first == _PLUS:
        at += 1
    value, digits, scale, has_point, has_digit = 0, 0, 0, False, False
    while at < end:
        byte = load_u8(at)
        if byte == _POINT and not has_point:
            has_point = True
        elif _ZERO <= byte and byte <= _NINE:
            has_digit = True
            value = value * 10 + byte - _ZERO
            if value > 0:
                digits += 1
            if has_point:
                scale += 1
            if digits > _MAX_PRECISION or scale > _MAX_SCALE:
                return _UNSURE, 0.0
        else:
            return _UNSURE, 0.0
        at += 1
    if not has_digit:
        return _UNSURE, 0.0
    power = 1.0
    for _ in range(scale):
        power *= 10.0
    number = float(value) / power
    return _READ, -number if is_negative else number


@inlined
def _passes(orders, is_less, is_greater):
    order = p.ORDER_LESS if is_less else (p.ORDER_GREATER if is_greater else p.ORDER_EQUAL)
    return p.TRUE if orders & order else p.FALSE


@inlined
def _compare_number(at, length, orders, kind, number):
    """Return the result of a comparison of a property with a number."""
    if kind == p.KIND_DOUBLE:
        state, decimal = _read_double(at, length)
        if state != _READ:
            return _ASK
        other = as_double(number)
        return _passes(orders, decimal < other, decimal > other)
    state, value = _read_whole(at, length, kind == p.KIND_LONG)
    if state == _READ:
        return _passes(orders, value < number, value > number)
    return _FAILED if state == _ERROR else _ASK


@inlined
def _compare_properties(left, left_length, right, right_length, orders):
    """Return the result of a comparison of two properties as numbers."""
    state, mine = _read_double(left, left_length)
    if state != _READ:
        return _ASK
    state, other = _read_double(right, right_length)
    if state != _READ:
        return _ASK
    if mine == 0.0 and other == 0.0:  # -0.0 is less than 0.0
        return _ASK
    return _passes(orders, mine < other, mine > other)


@inlined
def _contains(at, length, text, size):
    """Return TRUE if the text is part of the property."""
    if length * size > _MAX_SEARCHED:
        return _ASK
    last = at + length - size
    first = load_u8(text)
    while at <= last:
        if load_u8(at) == first and same_bytes(at, text, size):
            return p.TRUE
        at += 1
    return p.FALSE


@inlined
def _search(at, length, kind, text, size, is_negated):
    if size > length:
        return is_negated
    if kind == p.SEARCH_CONTAINS:
        found = _contains(at, length, text, size)
        if found == _ASK:
            return _ASK
    else:
        begin = at if kind == p.SEARCH_STARTS else at + length - size
        found = p.TRUE if same_bytes(begin, text, size) else p.FALSE
    return found ^ is_negated


@inlined
def _equal_properties(left, left_length, right, right_length):
    if left == 0:
        return p.TRUE if right == 0 else p.NULL
    if right == 0:
        return p.FALSE
    if left_length == right_length and same_bytes(left, right, left_length):
        return p.TRUE
    # Different invalid bytes are read as the same text.
    if not _is_ascii(left, left_length) and not _is_ascii(right, right_length):
        return _ASK
    return p.FALSE


@inlined
def _is_true_text(at, length):
    if length != 4:
        return 0
    word = load_u8(at) | load_u8(at + 1) << 8 | load_u8(at + 2) << 16 | load_u8(at + 3) << 24
    return 1 if word | _LOWER == _TRUE_TEXT else 0


@inlined
def _is_in(at, length, table, count, pool):
    for number in range(count):
        if get(table, 2 * number + 1) == length and same_bytes(pool + get(table, 2 * number), at, length):
            return p.TRUE
    return p.FALSE


@inlined
def _test(program, code, slots, pool):
    """Return the result of an instruction that tests one or two properties."""
    operation = get(code, 0)
    slot = slots + 16 * get(code, 1)
    at, length = get(slot, 0), get(slot, 1)
    if operation == p.OP_IS_NULL:
        return p.TRUE if at == 0 else p.FALSE
    if operation == p.OP_EQUAL_PROPERTIES:
        other = slots + 16 * get(code, 2)
        return _equal_properties(at, length, get(other, 0), get(other, 1))
    if operation == p.OP_SEARCH:
        if at == 0:
            return p.FALSE
        return _search(at, length, get(code, 2), pool + get(code, 3), get(code, 4), get(code, 5))
    if operation == p.OP_EQUAL_TEXT:
        if at == 0:
            return get(code, 4)
        if length == get(code, 3) and same_bytes(at, pool + get(code, 2), length):
            return p.TRUE
        return p.FALSE
    if operation == p.OP_NUMBER:
        if at == 0:
            return get(code, 5)
        return _compare_number(at, length, get(code, 2), get(code, 3), get(code, 4))
    # In the others absent is null.
    if at == 0:
        return p.NULL
    if operation == p.OP_EQUAL_BOOLEAN:
        return p.TRUE if _is_true_text(at, length) == get(code, 2) else p.FALSE
    if operation == p.OP_IN:
        return _is_in(at, length, program + 8 * get(code, 2), get(code, 3), pool) ^ get(code, 4)
    if operation == p.OP_NUMBER_PROPERTIES:
        other = slots + 16 * get(code, 2)
        if get(other, 0) == 0:
            return p.NULL
        return _compare_properties(at, length, get(other, 0), get(other, 1), get(code, 3))
    return p.FALSE  # OP_CAST


@inlined
def judge(program, properties, length):
    """Return 1 if the filter passes the properties, 0 if not, VERDICT_NONE if Python has to judge them."""
    _find_slots(program, properties, length)
    slots, pool = program + 8 * get(program, p.HEAD_SLOTS_AT), program + 8 * get(program, p.HEAD_POOL_AT)
    flags = program + 8 * get(program, p.HEAD_FLAGS_AT)
    at, end = get(program, p.HEAD_CODE_AT), get(program, p.HEAD_CODE_END)
    result = p.FALSE
    while at < end:
        code = program + 8 * at
        operation = get(code, 0)
        at += p.INSTRUCTION_WORDS
        if operation == p.OP_BEGIN:
            put(flags, get(code, 1), 0)
        elif operation == p.OP_AND or operation == p.OP_OR:
            if result == p.NULL:
                put(flags, get(code, 1), 1)
            elif (operation == p.OP_OR) == (result == p.TRUE):
                at = get(code, 2)
        elif operation == p.OP_END:
            result = p.NULL if get(flags, get(code, 1)) else get(code, 2)
        elif operation == p.OP_NOT:
            if result != p.NULL:
                result = 1 - result
        elif operation == p.OP_CONSTANT:
            result = get(code, 1)
        else:
            result = _test(program, code, slots, pool)
            if result == _ASK:
                return c.VERDICT_NONE
            if result == _FAILED:
                return 0
    return 1 if result == p.TRUE else 0
