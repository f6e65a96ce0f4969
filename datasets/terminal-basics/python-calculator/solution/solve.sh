#!/bin/bash
set -e
cat > /app/calc.py << 'END'
import re
import sys
from fractions import Fraction


class Reader:
    def __init__(self, line):
        self.rest = re.findall(r"[0-9]+|[^ ]", line)

    def take(self, wanted=""):
        if self.rest and (not wanted or self.rest[0] in wanted):
            return self.rest.pop(0)
        return ""

    def sum(self):
        value = self.product()
        while sign := self.take("+-"):
            value += self.product() if sign == "+" else -self.product()
        return value

    def product(self):
        value = self.factor()
        while sign := self.take("*/"):
            value = value * self.factor() if sign == "*" else value / self.factor()
        return value

    def factor(self):
        token = self.take()
        if token == "-":
            return -self.factor()
        if token == "(":
            value = self.sum()
            if not self.take(")"):
                raise ValueError("no )")
            return value
        if not re.fullmatch("[0-9]+", token):
            raise ValueError(token)
        return Fraction(token)


for line in sys.stdin:
    reader = Reader(line.rstrip("\n"))
    try:
        value = reader.sum()
        print("error" if reader.rest else value)
    except (ValueError, ZeroDivisionError):
        print("error")
END
