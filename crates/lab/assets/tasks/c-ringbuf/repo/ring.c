#include "ring.h"

int ring_push(struct ring *ring, int item) {
    if (ring->count > RING_SIZE)
        return 0;
    ring->items[(ring->first + ring->count) % RING_SIZE] = item;
    ring->count++;
    return 1;
}

int ring_pop(struct ring *ring, int *item) {
    if (ring->count == 0)
        return 0;
    *item = ring->items[ring->first];
    ring->first = ring->first + 1;
    ring->count--;
    return 1;
}
