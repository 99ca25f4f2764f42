/* Running statistics of spans, instants and counters, per name and category.
 *
 * Quantiles come from a log-linear histogram, 64 buckets per octave. A value v with 64 * w <= v < 128 * w, w a power
 * of two, falls in the bucket of width w that begins at w * (v / w). The middle of that bucket's integers is what is
 * reported: off by (w - 1) / 2 at most, relative to v by less than (w / 2) / (64 * w) = 1/128 = 0.79 %. Below 128 a
 * bucket holds one value and the answer is exact. Exact minimum and maximum only ever move it closer. */
#include "core.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define MAX_KEYS 65536                /* keys kept apart; further ones share one per kind, and are counted */
#define FIRST_KEYS 32                 /* room of a new table; it doubles: many tables are kept, of few keys each */
#define KINDS 3                       /* of the keys that further ones share: there is always room for those */
#define MAX_SKETCH_BYTES (256u << 20) /* buckets of all keys; beyond it values go to the nearest bucket there is */
#define GRAIN 16                      /* buckets are added this many at a time */
#define FEW_KEYS 32                   /* tables of no more are merged with the GIL held */

typedef struct {
    uint64_t key, count;              /* key: kind, category, name from the high bits down */
    union {
        struct {
            unsigned __int128 squares; /* of the durations: a sum that a million spans of 200 days each do not fill */
            int64_t total, self, min, max;
            uint64_t *buckets;
            uint32_t first, size;
        } span;
        struct {
            long double sum;
            double min, max, last;
            int64_t last_ts;
        } counter;
    };
} Entry;

typedef struct {
    uint64_t cut, negative, not_finite, other, blurred;
    size_t sketch_bytes;
    uint32_t used, room;
    uint32_t *slots;                  /* open addressing, twice the room: index of an entry + 1, 0 = free */
    Entry *entries;
} Table;

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;          /* held while the table changes or is copied, GIL released: never half updated */
    Table *table;
} Aggregates;

static uint32_t other_name;

static inline unsigned kind_of(const Entry *e) { return (unsigned)(e->key >> 48); }

static uint32_t slot_of(const Table *t, uint64_t key) {
    uint32_t mask = t->room * 2 - 1, at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & mask;
    while (t->slots[at] && t->entries[t->slots[at] - 1].key != key) at = (at + 1) & mask;
    return at;
}

/* Without memory for more, further keys share one as if there were too many of them. */
static bool table_grow(Table *t) {
    uint32_t room = t->room ? t->room * 2 : FIRST_KEYS;
    if (room > MAX_KEYS) return false;
    Entry *entries = realloc(t->entries, (room + KINDS) * sizeof *entries);
    if (entries) t->entries = entries;
    uint32_t *slots = entries ? calloc(room * 2, sizeof *slots) : NULL;
    if (!slots) return false;
    free(t->slots);
    t->slots = slots, t->room = room;
    for (uint32_t i = 0; i < t->used; i++) slots[slot_of(t, entries[i].key)] = i + 1;
    return true;
}

static Table *table_new(void) {
    Table *t = calloc(1, sizeof *t);
    if (t && !table_grow(t)) {
        free(t->entries);
        free(t);
        return NULL;
    }
    return t;
}

static Entry *table_find(Table *t, uint64_t key, uint64_t events) {
    uint32_t at = slot_of(t, key);
    if (t->slots[at]) return &t->entries[t->slots[at] - 1];
    uint64_t other = key >> 48 << 48 | other_name;
    if (t->used >= t->room && key != other) {
        if (table_grow(t)) return table_find(t, key, events);
        t->other += events;
        return table_find(t, other, events);
    }
    Entry *e = &t->entries[t->used++];
    *e = (Entry){.key = key};
    t->slots[at] = t->used;
    if (kind_of(e) == KIND_SPAN) e->span.min = INT64_MAX;
    if (kind_of(e) == KIND_COUNTER) e->counter.min = DBL_MAX, e->counter.max = -DBL_MAX, e->counter.last_ts = INT64_MIN;
    return e;
}

static uint32_t bucket_of(int64_t value) {
    uint32_t shift = value < 128 ? 0 : 57 - (uint32_t)__builtin_clzll((uint64_t)value);
    return shift * 64 + (uint32_t)(value >> shift);
}

static double bucket_middle(uint32_t bucket) {
    uint32_t shift = bucket < 128 ? 0 : bucket / 64 - 1;
    return ldexp(bucket - shift * 64, (int)shift) + (ldexp(1, (int)shift) - 1) / 2;
}

/* Makes room for buckets [from, to), if there is memory for it. */
static void sketch_cover(Table *t, Entry *e, uint32_t from, uint32_t to) {
    uint32_t first = e->span.first, size = e->span.size;
    if (size && first < from) from = first;
    if (size && first + size > to) to = first + size;
    size_t more = (to - from - size) * sizeof(uint64_t);
    uint64_t *buckets = more && t->sketch_bytes + more <= MAX_SKETCH_BYTES ? calloc(to - from, sizeof *buckets) : NULL;
    if (!buckets) return;
    if (size) memcpy(buckets + (first - from), e->span.buckets, size * sizeof *buckets);
    free(e->span.buckets);
    e->span.buckets = buckets, e->span.first = from, e->span.size = to - from;
    t->sketch_bytes += more;
}

static void sketch_add(Table *t, Entry *e, uint32_t bucket, uint64_t count) {
    if (bucket - e->span.first >= e->span.size) {
        sketch_cover(t, e, bucket / GRAIN * GRAIN, (bucket / GRAIN + 1) * GRAIN);
        if (bucket - e->span.first >= e->span.size) {
            t->blurred += count;
            if (!e->span.size) return; /* quantiles fall back to the maximum */
            bucket = bucket < e->span.first ? e->span.first : e->span.first + e->span.size - 1;
        }
    }
    e->span.buckets[bucket - e->span.first] += count;
}

/* Nearest rank: the smallest value that at least `percent` of the values do not exceed. */
static double quantile(const Entry *e, unsigned percent) {
    uint64_t rank = (e->count * percent + 99) / 100, seen = 0;
    if (rank == e->count) return (double)e->span.max;
    for (uint32_t i = 0; i < e->span.size; i++)
        if ((seen += e->span.buckets[i]) >= rank)
            return fmax((double)e->span.min, fmin((double)e->span.max, bucket_middle(e->span.first + i)));
    return (double)e->span.max;
}

static double deviation(const Entry *e) {
    unsigned __int128 square = (unsigned __int128)e->span.total * (uint64_t)e->span.total, scaled;
    bool exact = !__builtin_mul_overflow(e->span.squares, e->count, &scaled) && scaled >= square;
    long double above = exact ? (long double)(scaled - square) : (long double)e->span.squares * e->count - (long double)square;
    return sqrt(fmax(0, (double)above)) / (double)e->count;
}

static inline void entry_add(Entry *e, const Entry *more) {
    e->count += more->count;
    if (kind_of(more) == KIND_SPAN) {
        if (__builtin_add_overflow(e->span.total, more->span.total, &e->span.total)) e->span.total = INT64_MAX;
        if (__builtin_add_overflow(e->span.self, more->span.self, &e->span.self)) e->span.self = INT64_MAX;
        e->span.squares += more->span.squares;
        if (more->span.min < e->span.min) e->span.min = more->span.min;
        if (more->span.max > e->span.max) e->span.max = more->span.max;
    } else if (kind_of(more) == KIND_COUNTER) {
        e->counter.sum += more->counter.sum;
        e->counter.min = fmin(e->counter.min, more->counter.min);
        e->counter.max = fmax(e->counter.max, more->counter.max);
        /* Blocks arrive out of order: the last value is the latest one. */
        if (more->counter.last_ts >= e->counter.last_ts)
            e->counter.last = more->counter.last, e->counter.last_ts = more->counter.last_ts;
    }
}

static void table_update(Table *t, const char *bytes, size_t n) {
    Entry *e = NULL;
    for (size_t i = 0; i < n; i++) {
        Event v;
        memcpy(&v, bytes + i * sizeof v, sizeof v); /* the caller's buffer may be unaligned */
        if (v.kind != KIND_SPAN && v.kind != KIND_INSTANT && v.kind != KIND_COUNTER) continue;
        Entry one = {.key = (uint64_t)v.kind << 48 | (uint64_t)v.category << 32 | v.name, .count = 1};
        if (v.kind == KIND_COUNTER) {
            if (!isfinite(v.value)) {
                t->not_finite++;
                continue;
            }
            one.counter.sum = one.counter.min = one.counter.max = one.counter.last = v.value;
            one.counter.last_ts = v.ts;
        } else if (v.kind == KIND_SPAN) {
            t->negative += v.dur < 0 || v.self < 0;
            t->cut += (v.flags & (FLAG_CLIPPED | FLAG_OPEN)) != 0;
            one.span.total = one.span.min = one.span.max = v.dur < 0 ? 0 : v.dur;
            one.span.self = v.self < 0 ? 0 : v.self;
            one.span.squares = (unsigned __int128)one.span.total * (uint64_t)one.span.total;
        }
        if (!e || e->key != one.key) e = table_find(t, one.key, 1);
        entry_add(e, &one);
        if (v.kind == KIND_SPAN) sketch_add(t, e, bucket_of(one.span.total), 1);
    }
}

static void table_merge(Table *t, const Table *from) {
    t->cut += from->cut, t->negative += from->negative, t->not_finite += from->not_finite;
    t->other += from->other, t->blurred += from->blurred;
    for (const Entry *f = from->entries; f < from->entries + from->used; f++) {
        Entry *e = table_find(t, f->key, f->count);
        entry_add(e, f);
        if (kind_of(f) != KIND_SPAN || !f->span.size) continue;
        sketch_cover(t, e, f->span.first, f->span.first + f->span.size);
        for (uint32_t i = 0; i < f->span.size; i++)
            if (f->span.buckets[i]) sketch_add(t, e, f->span.first + i, f->span.buckets[i]);
    }
}

static void table_free(Table *t) {
    for (uint32_t i = 0; t && i < t->used; i++)
        if (kind_of(&t->entries[i]) == KIND_SPAN) free(t->entries[i].span.buckets);
    if (t) free(t->entries), free(t->slots);
    free(t);
}

static void lock(Aggregates *a) {
    if (PyThread_acquire_lock(a->lock, NOWAIT_LOCK)) return;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(a->lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
}

/* A copy of the table, so that nothing else is done (locking another, making objects) while the lock is held. */
static Table *snapshot(Aggregates *a) {
    Table *t;
    lock(a);
    Py_BEGIN_ALLOW_THREADS
    if ((t = table_new())) table_merge(t, a->table);
    Py_END_ALLOW_THREADS
    PyThread_release_lock(a->lock);
    return t ? t : (Table *)PyErr_NoMemory();
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (!PyArg_ParseTuple(args, ":Aggregates")) return NULL;
    if (!other_name) other_name = strings_intern("(other names)", 13);
    Aggregates *a = (Aggregates *)type->tp_alloc(type, 0);
    if (a && (!(a->lock = PyThread_allocate_lock()) || !(a->table = table_new()))) {
        Py_CLEAR(a);
        PyErr_NoMemory();
    }
    return (PyObject *)a;
}

static void dealloc(Aggregates *a) {
    table_free(a->table);
    if (a->lock) PyThread_free_lock(a->lock);
    Py_TYPE(a)->tp_free((PyObject *)a);
}

static PyObject *update(Aggregates *a, PyObject *events) {
    Py_buffer view;
    if (PyObject_GetBuffer(events, &view, PyBUF_SIMPLE) < 0) return NULL;
    if (view.len % (Py_ssize_t)sizeof(Event) == 0) {
        lock(a);
        size_t n = (size_t)view.len / sizeof(Event);
        PyThreadState *released = release_gil_for(n);
        table_update(a->table, view.buf, n);
        reacquire_gil(released);
        PyThread_release_lock(a->lock);
    } else PyErr_Format(PyExc_ValueError, "a block is a multiple of 64 bytes, got %zd bytes", view.len);
    PyBuffer_Release(&view);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *merge(Aggregates *a, PyObject *other) {
    if (!PyObject_TypeCheck(other, &AggregatesType))
        return PyErr_Format(PyExc_TypeError, "can merge Aggregates only, got %.200s", Py_TYPE(other)->tp_name);
    Aggregates *from = (Aggregates *)other;
    if (from != a && from->table->used <= FEW_KEYS && PyThread_acquire_lock(a->lock, NOWAIT_LOCK)) {
        /* With the GIL, which is kept, nobody changes `from` while its lock is free. */
        bool done = PyThread_acquire_lock(from->lock, NOWAIT_LOCK);
        if (done) {
            table_merge(a->table, from->table);
            PyThread_release_lock(from->lock);
        }
        PyThread_release_lock(a->lock);
        if (done) Py_RETURN_NONE;
    }
    Table *t = snapshot(from);
    if (!t) return NULL;
    lock(a);
    Py_BEGIN_ALLOW_THREADS
    table_merge(a->table, t);
    table_free(t);
    Py_END_ALLOW_THREADS
    PyThread_release_lock(a->lock);
    Py_RETURN_NONE;
}

static PyObject *row(const Entry *e) {
    unsigned name = (uint32_t)e->key, category = (uint16_t)(e->key >> 32);
    unsigned long long n = e->count;
    if (kind_of(e) == KIND_INSTANT) return Py_BuildValue("(IIK)", name, category, n);
    if (kind_of(e) == KIND_COUNTER)
        return Py_BuildValue("(IIKddddd)", name, category, n, e->counter.min, e->counter.max, e->counter.last,
                             (double)(e->counter.sum / n), (double)e->counter.sum);
    return Py_BuildValue("(IIKLLLLdddd)", name, category, n, (long long)e->span.total, (long long)e->span.self,
                         (long long)e->span.min, (long long)e->span.max, quantile(e, 50), quantile(e, 95), quantile(e, 99),
                         deviation(e));
}

static PyObject *rows(Aggregates *a, unsigned kind) {
    Table *t = snapshot(a);
    PyObject *list = t ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < t->used; i++) {
        if (kind_of(&t->entries[i]) != kind) continue;
        PyObject *item = row(&t->entries[i]);
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    table_free(t);
    return list;
}

static PyObject *span_rows(Aggregates *a, PyObject *unused) { return rows(a, KIND_SPAN); }
static PyObject *instant_rows(Aggregates *a, PyObject *unused) { return rows(a, KIND_INSTANT); }
static PyObject *counter_rows(Aggregates *a, PyObject *unused) { return rows(a, KIND_COUNTER); }

static PyObject *counts(Aggregates *a, PyObject *unused) {
    lock(a);
    unsigned long long cut = a->table->cut, negative = a->table->negative, not_finite = a->table->not_finite,
                       other = a->table->other, blurred = a->table->blurred;
    PyThread_release_lock(a->lock);
    return Py_BuildValue("{sKsKsKsKsK}", "cut", cut, "negative", negative, "not_finite", not_finite, "other", other, "blurred",
                         blurred);
}

static PyObject *nbytes(Aggregates *a, PyObject *unused) {
    lock(a);
    size_t bytes = sizeof *a->table + a->table->sketch_bytes + (a->table->room + KINDS) * sizeof(Entry) +
                   a->table->room * 2 * sizeof(uint32_t);
    PyThread_release_lock(a->lock);
    return PyLong_FromSize_t(bytes);
}

static PyMethodDef methods[] = {
    {"update", (PyCFunction)update, METH_O, NULL},
    {"merge", (PyCFunction)merge, METH_O, NULL},
    {"rows", (PyCFunction)span_rows, METH_NOARGS, NULL},
    {"instant_rows", (PyCFunction)instant_rows, METH_NOARGS, NULL},
    {"counter_rows", (PyCFunction)counter_rows, METH_NOARGS, NULL},
    {"counts", (PyCFunction)counts, METH_NOARGS, NULL},
    {"nbytes", (PyCFunction)nbytes, METH_NOARGS, NULL},
    {NULL},
};

PyTypeObject AggregatesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.Aggregates",
    .tp_basicsize = sizeof(Aggregates),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = new,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
};
