import unittest

from lru import LruCache


class LruTest(unittest.TestCase):
    def test_keeps_size(self):
        cache = LruCache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual((cache.get("a"), cache.get("b")), (1, 2))

    def test_read_makes_recent(self):
        cache = LruCache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual((cache.get("a"), cache.get("b"), cache.get("c")), (1, None, 3))

    def test_write_makes_recent(self):
        cache = LruCache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 4)
        cache.put("c", 3)
        self.assertEqual((cache.get("a"), cache.get("b")), (4, None))
