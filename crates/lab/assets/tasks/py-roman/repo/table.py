"""Prints the numerals of a range: table.py FIRST LAST."""
import sys

from roman import to_roman

for number in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
    print(number, to_roman(number))
