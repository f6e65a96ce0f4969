#!/bin/bash
set -e
cat > /app/roman.py << 'END'
VALUES = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5}
VALUES |= {"IV": 4, "I": 1}


def to_roman(number):
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} is not from 1 to 3999")
    text = ""
    for letters, value in VALUES.items():
        text += letters * (number // value)
        number %= value
    return text


def from_roman(text):
    capitals, total, rest = text.upper(), 0, text.upper()
    for letters, value in VALUES.items():
        while rest.startswith(letters):
            total, rest = total + value, rest[len(letters):]
    if rest or not 1 <= total <= 3999 or to_roman(total) != capitals:
        raise ValueError(f"{text!r} is no Roman numeral")
    return total
END
