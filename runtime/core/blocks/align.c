/* Gives events the times of another clock, in one pass: a merge does so with all events, and a pass of numpy for each field costs more
 * than all else. */
#include "core.h"

#include <math.h>

#define LONGEST (INT64_C(1) << 60) /* ns; a longer duration, or a later time, is nonsense that is passed on as it is */

/* Another clock in terms of that of the events: linear between knots. */
typedef struct {
    const int64_t *at; /* ns by the clock of the events, ascending */
    const double *ahead; /* ns that the other clock is ahead of it there, less `base` */
    size_t count; /* of the knots */
    int64_t base;
    double before, after; /* slopes outside */
    int64_t low, high; /* around the last time, without `high`: times are nearly in order */
    int64_t from; /* the knot that the line between them goes through */
    double value, slope; /* of that line */
} Clock;

#define ROUNDING 0x1.8p52 /* numbers of this size have no fraction */

/* The nearest whole number. `rint` is a call where the processor is not known to have more than x86-64. */
static inline int64_t whole(double ns) {
    if (fabs(ns) < 0x1p51) return (int64_t)((ns + ROUNDING) - ROUNDING);
    return fabs(ns) < 0x1p63 ? (int64_t)ns : INT64_MIN;
}

static inline int64_t difference(int64_t one, int64_t other) { return (int64_t)((uint64_t)one - (uint64_t)other); }

/* Finds the line for a time. */
static void go_to(Clock *clock, int64_t at) {
    size_t last = clock->count - 1;
    if (at < clock->at[0]) {
        clock->low = INT64_MIN, clock->high = clock->from = clock->at[0];
        clock->value = clock->ahead[0], clock->slope = clock->before;
        return;
    }
    if (at >= clock->at[last]) {
        clock->low = clock->from = clock->at[last], clock->high = INT64_MAX;
        clock->value = clock->ahead[last], clock->slope = clock->after;
        return;
    }
    size_t to = times_until(clock->at, 1, last, at), from = to - 1;
    clock->low = clock->from = clock->at[from], clock->high = clock->at[to], clock->value = clock->ahead[from];
    clock->slope = (clock->ahead[to] - clock->value) / (double)difference(clock->high, clock->low);
}

static inline int64_t convert(Clock *clock, int64_t at) {
    if (at < clock->low || at >= clock->high) go_to(clock, at);
    double ahead = clock->value + clock->slope * (double)difference(at, clock->from);
    return (int64_t)((uint64_t)at + (uint64_t)clock->base + (uint64_t)whole(ahead));
}

PyObject *align_py_align(PyObject *self, PyObject *args) {
    Py_buffer events, at, ahead;
    long long base;
    Clock clock = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "w*y*y*Ldd", &events, &at, &ahead, &base, &clock.before, &clock.after)) return NULL;
    if (events.len % (Py_ssize_t)sizeof(Event) || at.len != ahead.len || at.len < 8 || at.len % 8) {
        PyErr_SetString(PyExc_ValueError, "align() takes whole events, and as many times as differences, one at least");
    } else {
        size_t count = (size_t)events.len / sizeof(Event);
        bool flows = false;
        clock.at = at.buf, clock.ahead = ahead.buf, clock.count = (size_t)at.len / 8, clock.base = base;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < count; i++) {
            Event e; /* a block may lie anywhere */
            char *place = (char *)events.buf + i * sizeof e;
            memcpy(&e, place, sizeof e);
            int64_t start = convert(&clock, e.ts), lasted = e.dur, own = e.self;
            flows |= e.kind >= KIND_FLOW_START && e.kind <= KIND_FLOW_END;
            if (e.dur > 0 && e.dur < LONGEST && e.ts > -LONGEST && e.ts < LONGEST) {
                lasted = difference(convert(&clock, e.ts + e.dur), start);
                if (e.kind != KIND_COUNTER && e.kind != KIND_MEMORY) {
                    if (lasted != e.dur) own = whole((double)own * ((double)lasted / (double)e.dur));
                    if (own > lasted) own = lasted;
                }
            }
            /* Field by field: the processor waits where it reads as a whole what was just written in parts. */
            memcpy(place + offsetof(Event, ts), &start, sizeof start);
            memcpy(place + offsetof(Event, dur), &lasted, sizeof lasted);
            memcpy(place + offsetof(Event, self), &own, sizeof own);
        }
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(flows);
    }
    PyBuffer_Release(&events);
    PyBuffer_Release(&at);
    PyBuffer_Release(&ahead);
    return result;
}
