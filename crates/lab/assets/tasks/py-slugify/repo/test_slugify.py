import unittest

from slugify import slugify


class SlugifyTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slugify("Hello World"), "hello-world")

    def test_digits(self):
        self.assertEqual(slugify("Top 10"), "top-10")

    def test_runs(self):
        self.assertEqual(slugify("a  --  b"), "a-b")

    def test_ends(self):
        self.assertEqual(slugify("  (draft)  "), "draft")
