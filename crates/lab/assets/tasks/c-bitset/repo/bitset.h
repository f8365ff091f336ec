#ifndef BITSET_H
#define BITSET_H

#define BITSET_BITS 128

/* A set of numbers from 0 to BITSET_BITS - 1. */
struct bitset {
    unsigned words[BITSET_BITS / 32];
};

void bitset_add(struct bitset *set, int bit);
int bitset_has(const struct bitset *set, int bit);
int bitset_count(const struct bitset *set);

#endif
