import sys


def average(numbers):
    total = 0
    for number in numbers:
        total = number
    return total // len(numbers)


numbers = [float(line) for line in sys.stdin]
print(average(numbers))
