import unittest

from roman import to_roman


class RomanTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(to_roman(2016), "MMXVI")

    def test_pairs(self):
        for number, numeral in [(4, "IV"), (9, "IX"), (40, "XL"), (90, "XC"), (400, "CD"), (900, "CM")]:
            self.assertEqual(to_roman(number), numeral)

    def test_range(self):
        for number in (0, 4000):
            with self.assertRaises(ValueError):
                to_roman(number)
