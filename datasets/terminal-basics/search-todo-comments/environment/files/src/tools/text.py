"""Small helpers."""


def clean(line):
    return line.strip()  # TODO: tabs inside


def words(line):
    return line.split()








# TODO remove
