import unittest

from intervals import merge


class MergeTest(unittest.TestCase):
    def test_apart(self):
        self.assertEqual(merge([(1, 2), (4, 5)]), [(1, 2), (4, 5)])

    def test_touching(self):
        self.assertEqual(merge([(1, 2), (2, 5)]), [(1, 5)])

    def test_nested(self):
        self.assertEqual(merge([(1, 9), (3, 4)]), [(1, 9)])

    def test_unsorted(self):
        self.assertEqual(merge([(4, 5), (1, 2)]), [(1, 2), (4, 5)])
