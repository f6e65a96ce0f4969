import sys

sys.path.insert(0, "/app")
from roman import from_roman, to_roman

VALUES = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"))
VALUES += ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def right(number):
    text = ""
    for value, letters in VALUES:
        while number >= value:
            text, number = text + letters, number - value
    return text


def refused(function, value):
    try:
        function(value)
    except ValueError:
        return True
    return False


for number in range(1, 4000):
    assert to_roman(number) == right(number), number
    assert from_roman(right(number)) == number, number
assert from_roman("mcmXciv") == 1994
for number in (0, -1, 4000, 12345):
    assert refused(to_roman, number), number
for text in ("", "IIII", "IC", "VX", "MMMM", " IX", "X I", "A", "IXI", "VV", "XCX", "CMC", "IVI", "12", "LL", "XXXX"):
    assert refused(from_roman, text), text
print("all right", sum(map(from_roman, ("XII", "XXX"))))
