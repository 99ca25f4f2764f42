/* The time that recording adds to a program on this machine: the real code, timed on a ring and a stack that nobody drains. */
#include "rings/ring.h"
#include <stdlib.h>

#define CHUNKS 9       /* timed apart: the median is not that of a chunk in which the thread was interrupted */
#define CHUNK_EVENTS 512
#define SLOTS 16384    /* more than is written before `tail_seen` follows: the ring never runs full */

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* ns of one event: a span's stack, clocks and record, or those of an event without a duration. */
static double one_event(Thread *t, bool span) {
    double chunks[CHUNKS];
    Open open;
    Event event = {.kind = KIND_INSTANT, .track = t->stack->track};
    for (int i = 0; i < CHUNKS; i++) {
        int64_t start = clock_now();
        for (int n = 0; n < CHUNK_EVENTS; n++) {
            if (span) {
                span_open(t, t->stack, &open, FIRST_NAME, 0, 0);
                span_close(t, &open, clock_now(), 0, 0, 0, NULL, 0);
            } else {
                event.parent = stack_top(t->stack);
                event.ts = clock_now();
                ring_write(t, &event, NULL, 0);
            }
        }
        chunks[i] = (double)(clock_now() - start) / CHUNK_EVENTS;
        t->ring->tail_seen = t->ring->head;
    }
    qsort(chunks, CHUNKS, sizeof *chunks, by_value);
    return chunks[CHUNKS / 2];
}

PyObject *cost_py_event_costs(PyObject *self, PyObject *unused) {
    Ring *r = calloc(1, sizeof *r);
    Stack *s = calloc(1, sizeof *s);
    char *memory = calloc(1, HEADER + SLOTS * sizeof(Event));
    double span = 0, instant = 0;
    if (r && s && memory) {
        Thread thread = {.ring = r, .stack = s, .serial = UINT64_MAX, .next_id = 1};
        r->header = (Header *)memory;
        r->data = (Event *)(memory + HEADER);
        r->mask = SLOTS - 1;
        r->backed = UINT64_MAX;
        s->track = 1;
        atomic_store(&s->owner, thread.serial);
        Py_BEGIN_ALLOW_THREADS
        span = one_event(&thread, true);
        instant = one_event(&thread, false);
        Py_END_ALLOW_THREADS
    }
    bool failed = !r || !s || !memory;
    free(r), free(s), free(memory);
    return failed ? PyErr_NoMemory() : Py_BuildValue("dd", span, instant);
}
