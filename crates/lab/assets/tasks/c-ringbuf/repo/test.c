#include <stdio.h>
#include "ring.h"

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
    struct ring ring = {{0}, 0, 0};
    int item = 0;
    for (int i = 1; i <= RING_SIZE; i++)
        ring_push(&ring, i);
    check("full", ring_push(&ring, 99), 0);
    ring_pop(&ring, &item);
    check("oldest", item, 1);
    for (int i = 0; i < 10; i++) {
        ring_pop(&ring, &item);
        ring_push(&ring, 10 + i);
    }
    check("count", ring.count, 3);
    check("first in range", ring.first >= 0 && ring.first < RING_SIZE, 1);
    return failed;
}
