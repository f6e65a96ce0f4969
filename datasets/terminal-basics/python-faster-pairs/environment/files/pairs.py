import sys

with open(sys.argv[1]) as file:
    numbers = [int(line) for line in file]
target = int(sys.argv[2])
count = 0
for i in range(len(numbers)):
    for j in range(i + 1, len(numbers)):
        if numbers[i] + numbers[j] == target:
            count += 1
print(count)
