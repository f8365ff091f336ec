#include "bitset.h"

void bitset_add(struct bitset *set, int bit) {
    set->words[bit / 32] |= 1 << bit;
}

int bitset_has(const struct bitset *set, int bit) {
    return (set->words[bit / 32] >> (bit % 32)) & 1;
}

int bitset_count(const struct bitset *set) {
    int count = 0;
    for (int bit = 0; bit < 32; bit++)
        count += bitset_has(set, bit);
    return count;
}
