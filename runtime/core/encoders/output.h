/* Bytes for Python that grow while they are written without the GIL. */
#ifndef STEPSCOPE_OUTPUT_H
#define STEPSCOPE_OUTPUT_H

#include "core.h"

typedef struct {
    PyObject *bytes; /* what was written so far, and room */
    char *begin, *at, *end;
    bool failed; /* there is no memory: `output_close` raises */
    PyThreadState *released;
    char waste[4096]; /* what is written after a failure goes there, over and over */
} Output;

/* Makes room, and lets go of the GIL if much will be written; false with an exception, and the GIL, if that cannot be done. */
static inline bool output_open(Output *o, size_t room) {
    o->bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room += 4096));
    if (!o->bytes) return false;
    o->failed = false;
    o->begin = o->at = PyBytes_AS_STRING(o->bytes), o->end = o->at + room;
    o->released = release_gil_for(room / sizeof(Event));
    return true;
}

/* Takes the GIL again; what was written, or NULL and an exception. */
static inline PyObject *output_close(Output *o) {
    reacquire_gil(o->released);
    if (!o->failed) {
        _PyBytes_Resize(&o->bytes, o->at - o->begin);
        return o->bytes;
    }
    Py_XDECREF(o->bytes);
    return PyErr_NoMemory();
}

static inline bool output_grow(Output *o, size_t need) {
    size_t used = (size_t)(o->at - o->begin), size = used + used / 2 + need + 4096;
    if (!o->failed) {
        reacquire_gil(o->released);
        if (_PyBytes_Resize(&o->bytes, (Py_ssize_t)size) < 0) PyErr_Clear(), o->failed = true;
        else o->begin = PyBytes_AS_STRING(o->bytes), o->at = o->begin + used, o->end = o->begin + size;
        if (o->released) o->released = PyEval_SaveThread();
    }
    if (o->failed) o->begin = o->at = o->waste, o->end = o->waste + sizeof o->waste;
    return (size_t)(o->end - o->at) >= need;
}

/* Makes room; true for 4096 bytes in any case. */
static inline bool output_reserve(Output *o, size_t need) { return (size_t)(o->end - o->at) >= need || output_grow(o, need); }

/* The room was reserved before. */
static inline void output_put(Output *o, const void *bytes, size_t len) { memcpy(o->at, bytes, len), o->at += len; }

/* The same for short texts, for which a call of memcpy costs more than the copy. */
static inline void output_put_short(Output *o, const char *text, size_t len) {
    char *to = o->at;
    if (len >= 16) {
        for (size_t at = 0; at < len - 16; at += 16) memcpy(to + at, text + at, 16);
        memcpy(to + len - 16, text + len - 16, 16);
    } else if (len >= 8) memcpy(to, text, 8), memcpy(to + len - 8, text + len - 8, 8);
    else if (len >= 4) memcpy(to, text, 4), memcpy(to + len - 4, text + len - 4, 4);
    else if (len) to[0] = text[0], to[len / 2] = text[len / 2], to[len - 1] = text[len - 1];
    o->at = to + len;
}

/* The text behind the name of a counter whose value is no number. */
static inline const char *not_finite_text(const Event *e) {
    if (e->flags & FLAG_NO_NUMBER) return " is no number";
    return e->value != e->value ? " is NaN" : e->value > 0 ? " is Infinity" : " is -Infinity";
}

/* The arguments of an event in its heap, one after the other. */
typedef struct {
    const char *at, *end;
    bool good; /* what was read so far lies in the heap */
} Arguments;

static inline Arguments arguments_of(const Event *e, const char *heap, size_t heap_len) {
    bool good = (uint64_t)e->args_at + e->args_len <= heap_len;
    return good ? (Arguments){heap + e->args_at, heap + e->args_at + e->args_len, true} : (Arguments){NULL, NULL, false};
}
static inline bool argument_next(Arguments *a, ArgItem *item, const char **value) {
    if (!a->good || a->at == a->end) return false;
    size_t remaining = (size_t)(a->end - a->at);
    a->good = remaining >= sizeof *item;
    if (!a->good) return false;
    memcpy(item, a->at, sizeof *item);
    a->good = item->len <= remaining - sizeof *item;
    *value = a->at + sizeof *item;
    if (a->good) a->at += sizeof *item + item->len;
    return a->good;
}

#endif
