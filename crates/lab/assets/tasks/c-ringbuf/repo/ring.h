#ifndef RING_H
#define RING_H

#define RING_SIZE 4

/* A ring of at most RING_SIZE numbers. */
struct ring {
    int items[RING_SIZE];
    int first;
    int count;
};

/* Returns 1, or 0 if the ring is full. */
int ring_push(struct ring *ring, int item);
/* Returns 1 and the oldest item, or 0 if the ring is empty. */
int ring_pop(struct ring *ring, int *item);

#endif
