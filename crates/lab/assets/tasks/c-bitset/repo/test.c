#include <stdio.h>
#include "bitset.h"

static int failed;

static void check(const char *name, int got, int wanted) {
    if (got == wanted) {
        printf("ok: %s\n", name);
    } else {
        printf("FAIL: %s: wanted %d, got %d\n", name, wanted, got);
        failed = 1;
    }
}

int main(void) {
    struct bitset set = {{0}};
    bitset_add(&set, 3);
    bitset_add(&set, 100);
    bitset_add(&set, 127);
    check("low", bitset_has(&set, 3), 1);
    check("high", bitset_has(&set, 100), 1);
    check("absent", bitset_has(&set, 99), 0);
    check("count", bitset_count(&set), 3);
    return failed;
}
