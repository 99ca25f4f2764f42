/* The fields of blocks of events as Arrow lays columns out: values one after the other, and a bit for each that says whether there is
 * one. One pass: a pass of numpy for each field costs more than all else that a Parquet file needs. */
#include "core.h"
#include <stdlib.h>

enum { TS, DUR, SELF, VALUE, ID, PARENT, PID, TID, WIDE }; /* 8 bytes a value */
enum { STEP, KIND, CATEGORY, NAME, TRACK, NARROW, PLACES = KIND }; /* 4 bytes; but for steps, places among different ones */
enum { HAS_STEP, HAS_SELF, HAS_VALUE, HAS_ID, HAS_PARENT, HAS_ARGUMENTS, IS_SPAN, CLIPPED, OPEN, ERROR, BITS };

/* Different keys in the order in which they came. */
typedef struct {
    uint64_t *keys, last;
    uint32_t *slots; /* 1 + the place of a key, 0: free */
    uint32_t count, room, last_place; /* room: of `keys`, half that of `slots` */
} Distinct;

static uint32_t *slot_of(const Distinct *d, uint64_t key) {
    uint32_t mask = d->room * 2 - 1, at = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (d->slots[at] && d->keys[d->slots[at] - 1] != key) at = (at + 1) & mask;
    return &d->slots[at];
}

static bool make_room(Distinct *d) {
    uint32_t room = d->room ? d->room * 2 : 256;
    uint64_t *keys = realloc(d->keys, room * sizeof *keys);
    if (keys) d->keys = keys;
    uint32_t *slots = calloc(room * 2, sizeof *slots);
    if (!keys || !slots) return free(slots), false;
    free(d->slots);
    d->slots = slots, d->room = room;
    for (uint32_t i = 0; i < d->count; i++) *slot_of(d, d->keys[i]) = i + 1;
    return true;
}

/* The place of a key; UINT32_MAX without memory. */
static inline uint32_t place_of(Distinct *d, uint64_t key) {
    if (d->count && key == d->last) return d->last_place;
    if (d->count == d->room && !make_room(d)) return UINT32_MAX;
    uint32_t *slot = slot_of(d, key);
    if (!*slot) d->keys[d->count] = key, *slot = ++d->count;
    d->last = key;
    return d->last_place = *slot - 1;
}

static PyObject *keys_of(const Distinct *d) {
    PyObject *list = PyList_New(d->count);
    for (uint32_t i = 0; list && i < d->count; i++) {
        PyObject *key = PyLong_FromUnsignedLongLong(d->keys[i]);
        if (key) PyList_SET_ITEM(list, i, key);
        else Py_CLEAR(list);
    }
    return list;
}

/* The step makes another name. */
static uint64_t name_key(const Event *e) {
    return e->flags & FLAG_NUMBERED && e->step >= 0 ? e->name | ((uint64_t)e->step + 1) << 32 : e->name;
}

enum { WORD = 64 };

typedef struct {
    char *wide[WIDE];
    uint32_t *narrow[NARROW];
    uint64_t *bits[BITS];
    unsigned long long set[BITS]; /* how many bits are */
    Distinct distinct[NARROW - PLACES];
    uint16_t masks[WORD]; /* the bits of the last events, which are not in `bits` yet */
    size_t count; /* events so far */
    bool failed; /* no memory */
} Columns;

static uint16_t mask_of(const Event *e) {
    bool span = e->kind == KIND_SPAN;
    bool bits[BITS] = {
        [HAS_STEP] = e->step >= 0,
        [HAS_SELF] = span && !(e->flags & FLAG_NUMBERED), /* steps have no id: nothing has them for a parent */
        [HAS_VALUE] = e->kind == KIND_COUNTER || e->kind == KIND_MEMORY,
        [HAS_ID] = e->id && e->kind != KIND_STEP,
        [HAS_PARENT] = e->parent,
        [HAS_ARGUMENTS] = e->args_len || e->flags & FLAG_ARG_INLINE,
        [IS_SPAN] = span,
        [CLIPPED] = e->flags & FLAG_CLIPPED,
        [OPEN] = e->flags & FLAG_OPEN,
        [ERROR] = e->flags & FLAG_ERROR,
    };
    uint16_t mask = 0;
    for (int k = 0; k < BITS; k++) mask |= (uint16_t)(bits[k] << k);
    return mask;
}

/* The bits of the last `n` events, one word at most for each column. Most columns have the same bit in all of them. */
static void put_bits(Columns *c, size_t n) {
    uint16_t all = UINT16_MAX, any = 0;
    for (size_t i = 0; i < n; i++) all &= c->masks[i], any |= c->masks[i];
    for (int k = 0; k < BITS; k++) {
        uint64_t word = 0;
        if (all >> k & 1) word = UINT64_MAX >> (WORD - n);
        else if (any >> k & 1)
            for (size_t i = 0; i < n; i++) word |= (uint64_t)(c->masks[i] >> k & 1) << i;
        c->bits[k][(c->count - 1) / WORD] = word;
        c->set[k] += (unsigned)__builtin_popcountll(word);
    }
}

static void put_block(Columns *c, const char *events, size_t count, uint64_t ahead) {
    uint32_t track = 0;
    const Track *row = track_get(track);
    for (size_t n = 0; n < count; n++) {
        Event e; /* a block may lie anywhere */
        memcpy(&e, events + n * sizeof e, sizeof e);
        if (e.track != track) row = track_get(track = e.track);
        size_t i = c->count++;
        uint64_t ts = (uint64_t)e.ts + ahead, keys[] = {e.kind, e.category, name_key(&e), e.track};
        memcpy(c->wide[TS] + i * 8, &ts, 8);
        memcpy(c->wide[DUR] + i * 8, &e.dur, 8);
        memcpy(c->wide[SELF] + i * 8, &e.self, 8);
        memcpy(c->wide[VALUE] + i * 8, &e.value, 8);
        memcpy(c->wide[ID] + i * 8, &e.id, 8);
        memcpy(c->wide[PARENT] + i * 8, &e.parent, 8);
        memcpy(c->wide[PID] + i * 8, &row->pid, 8);
        memcpy(c->wide[TID] + i * 8, &row->tid, 8);
        c->narrow[STEP][i] = (uint32_t)e.step;
        for (int k = PLACES; k < NARROW; k++) {
            uint32_t place = place_of(&c->distinct[k - PLACES], keys[k - PLACES]);
            c->narrow[k][i] = place;
            c->failed |= place == UINT32_MAX;
        }
        c->masks[i % WORD] = mask_of(&e);
        if (i % WORD == WORD - 1) put_bits(c, WORD);
    }
}

static PyObject *put_columns(Columns *c, const Py_buffer *blocks, Py_ssize_t count, size_t events, uint64_t ahead) {
    PyThreadState *released = release_gil_for(events);
    for (Py_ssize_t i = 0; i < count; i++) put_block(c, blocks[i].buf, (size_t)blocks[i].len / sizeof(Event), ahead);
    if (c->count % WORD) put_bits(c, c->count % WORD);
    reacquire_gil(released);
    PyObject *result = NULL;
    if (c->failed) PyErr_NoMemory();
    else
        result = Py_BuildValue("[KKKKKKKKKK][NNNN]", c->set[0], c->set[1], c->set[2], c->set[3], c->set[4], c->set[5],
                               c->set[6], c->set[7], c->set[8], c->set[9], keys_of(&c->distinct[0]), keys_of(&c->distinct[1]),
                               keys_of(&c->distinct[2]), keys_of(&c->distinct[3]));
    for (int i = 0; i < NARROW - PLACES; i++) free(c->distinct[i].keys), free(c->distinct[i].slots);
    return result;
}

PyObject *arrow_py_columns(PyObject *self, PyObject *args) {
    Py_buffer room;
    PyObject *given, *result = NULL;
    long long ahead;
    if (!PyArg_ParseTuple(args, "OLw*", &given, &ahead, &room)) return NULL;
    PyObject *list = PySequence_Fast(given, "arrow_columns() takes a sequence of blocks");
    Py_ssize_t count = list ? PySequence_Fast_GET_SIZE(list) : 0, taken = 0;
    Py_buffer *blocks = list ? PyMem_Calloc((size_t)count + 1, sizeof *blocks) : NULL;
    size_t events = 0;
    bool whole = true;
    if (list && !blocks) PyErr_NoMemory();
    for (; blocks && taken < count; taken++) {
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(list, taken), &blocks[taken], PyBUF_SIMPLE) < 0) break;
        events += (size_t)blocks[taken].len / sizeof(Event);
        whole &= blocks[taken].len % (Py_ssize_t)sizeof(Event) == 0;
    }
    size_t rows = (events + WORD - 1) / WORD * WORD;
    if (!blocks || taken < count) whole = false; /* there is an exception */
    else if (!whole || (uintptr_t)room.buf % 8 || (size_t)room.len != rows * (8 * WIDE + 4 * NARROW) + rows / 8 * BITS)
        PyErr_SetString(PyExc_ValueError, "arrow_columns() takes whole events, and aligned room for their columns");
    else {
        Columns c = {0};
        char *at = room.buf;
        for (int i = 0; i < WIDE; i++, at += 8 * rows) c.wide[i] = at;
        for (int i = 0; i < NARROW; i++, at += 4 * rows) c.narrow[i] = (uint32_t *)at;
        for (int i = 0; i < BITS; i++, at += rows / 8) c.bits[i] = (uint64_t *)at;
        result = put_columns(&c, blocks, count, events, (uint64_t)ahead);
    }
    while (taken) PyBuffer_Release(&blocks[--taken]);
    PyMem_Free(blocks);
    Py_XDECREF(list);
    PyBuffer_Release(&room);
    return result;
}
