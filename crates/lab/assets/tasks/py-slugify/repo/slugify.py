"""Turns titles into slugs for URLs."""


def slugify(title: str) -> str:
    """Lower case, words joined by single dashes, nothing but letters, digits and dashes."""
    slug = ""
    for char in title.lower():
        if char.isalpha():
            slug += char
        else:
            slug += "-"
    return slug
