"""Merges closed integer intervals."""


def merge(intervals):
    """Returns the union as a sorted list of disjoint intervals."""
    merged = []
    for start, end in intervals:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
