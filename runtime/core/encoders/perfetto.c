/* Perfetto's native format (perfetto.dev, "Synthetic TrackEvent") of blocks of events: packets that stand one after the
 * other, so a file of them grows by appending and loses only what was cut off. The GIL is released meanwhile.
 *
 * Each row is a packet sequence of its own. So its packets need neither say the row, which is the sequence's default, nor
 * the whole time: its clock counts from packet to packet. Names, categories and argument keys are numbers after
 * they were used once. The output is a trace for every content of a block and its heap. */
#include "encoders/perfetto.h"
#include "encoders/json.h"

/* Fields of TracePacket, TrackEvent and what is in them. */
enum {
    PACKET = TAG(1, LEN),
    CLOCK_SNAPSHOT = TAG(6, LEN),
    TIMESTAMP = TAG(8, VARINT),
    SEQUENCE = TAG(10, VARINT),
    TRACK_EVENT = TAG(11, LEN),
    INTERNED_DATA = TAG(12, LEN),
    SEQUENCE_FLAGS = TAG(13, VARINT),
    CLOCK_ID = TAG(58, VARINT),
    DEFAULTS = TAG(59, LEN),
    CATEGORY_IID = TAG(3, VARINT),
    LEGACY = TAG(6, LEN),
    TYPE = TAG(9, VARINT),
    NAME_IID = TAG(10, VARINT),
    TRACK_UUID = TAG(11, VARINT),
    NAME = TAG(23, LEN),
    DOUBLE_VALUE = TAG(44, FIXED64),
    LEGACY_PHASE = TAG(2, VARINT),
    LEGACY_UNSCOPED_ID = TAG(6, VARINT),
    LEGACY_LOCAL_ID = TAG(10, VARINT),
    LEGACY_BIND_TO_ENCLOSING = TAG(12, VARINT)
};
enum { SLICE_BEGIN = 1, SLICE_END, INSTANT, COUNTER, LEGACY_PHASES = 0 };
enum { STATE_CLEARED = 1, STATE_NEEDED = 2 };
enum { CLOCK_MONOTONIC_ID = 3, CLOCK_OF_SEQUENCE = 64 };
#define FIRST_SEQUENCE 3 /* 1 and 2 are those of packets that do not come from events */

bool make_room(void **array, uint32_t *room, size_t need, size_t size) {
    if (need <= *room) return true;
    size_t more = need + need / 2 + 16;
    char *grown = more < UINT32_MAX ? realloc(*array, more * size) : NULL;
    if (!grown) return false;
    memset(grown + *room * size, 0, (more - *room) * size);
    *array = grown, *room = (uint32_t)more;
    return true;
}
#define MAKE_ROOM(array, room, need) make_room((void **)&(array), &(room), need, sizeof *(array))

uint64_t mix(uint64_t base, uint64_t kind, uint64_t id) { /* splitmix64's finisher; never 0, which means no row */
    uint64_t z = base ^ kind << 56 ^ id * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return z ? z : 1;
}

static inline Interned *slot_of(const Encoder *c, uint64_t key) {
    uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & (c->interned_room - 1);
    while (c->interned[at].key && c->interned[at].key != key) at = (at + 1) & (c->interned_room - 1);
    return &c->interned[at];
}

static bool more_interned(Encoder *c) {
    Interned *old = c->interned;
    uint32_t n = c->interned_room, room = n ? n * 2 : 1024;
    Interned *grown = room ? calloc(room, sizeof *grown) : NULL;
    if (!grown) return false;
    c->interned = grown, c->interned_room = room;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].key) *slot_of(c, old[i].key) = old[i];
    free(old);
    return true;
}

/* The number that the key stands for so far, 0 = none; NULL without memory. */
static uint32_t *number_of(Encoder *c, uint64_t key) {
    if (c->interned_used >= c->interned_room / 2 && !more_interned(c)) return c->out.failed = true, NULL;
    Interned *slot = slot_of(c, key);
    if (!slot->key) slot->key = key, slot->iid = 0, c->interned_used++;
    return &slot->iid;
}

uint32_t intern(Encoder *c, Row *row, uint32_t kind, uint32_t id) {
    uint64_t key = (uint64_t)(row - c->rows + 1) << 36 | (uint64_t)kind << 32 | id;
    const Interned *known = c->interned_room ? slot_of(c, key) : NULL;
    if (known && known->key && known->iid) return known->iid;
    uint32_t *iid = number_of(c, key);
    if (!iid || *iid) return iid ? *iid : 0;
    if (!MAKE_ROOM(c->fresh, c->fresh_room, c->fresh_used + 1)) return c->out.failed = true, 0;
    *iid = ++row->iids[kind];
    c->fresh[c->fresh_used++] = (Fresh){kind, *iid, id};
    return *iid;
}

bool first_time(Encoder *c, uint64_t uuid) {
    uint32_t *seen = number_of(c, uuid | 1ull << 63);
    return seen && !(*seen)++;
}

/* A new sequence for the row: its clock, which is the monotonic one, and what its packets leave out. */
static void begin_sequence(Encoder *c, Row *row) {
    Output *o = &c->out;
    describe_row(c, row);
    row->sequence = FIRST_SEQUENCE + c->sequences++;
    row->last = 0;
    memset(row->iids, 0, sizeof row->iids);
    size_t packet = proto_open(o, PACKET);
    proto_uint(o, SEQUENCE, row->sequence);
    proto_uint(o, SEQUENCE_FLAGS, STATE_CLEARED);
    size_t defaults = proto_open(o, DEFAULTS);
    proto_uint(o, CLOCK_ID, CLOCK_OF_SEQUENCE);
    size_t event = proto_open(o, TRACK_EVENT);
    proto_uint(o, TRACK_UUID, row->uuid);
    proto_close(o, event);
    proto_close(o, defaults);
    size_t snapshot = proto_open(o, CLOCK_SNAPSHOT);
    for (int i = 0; i < 2; i++) {
        size_t clock = proto_open(o, TAG(1, LEN));
        proto_uint(o, TAG(1, VARINT), i ? CLOCK_MONOTONIC_ID : CLOCK_OF_SEQUENCE);
        proto_uint(o, TAG(2, VARINT), 0);
        if (!i) proto_uint(o, TAG(3, VARINT), true);
        proto_close(o, clock);
    }
    proto_close(o, snapshot);
    proto_close(o, packet);
}

typedef struct { size_t packet, event; } Begun;

/* A packet with a track event of this type, and room for fields of fixed size. */
static Begun open_event(Encoder *c, Row *row, int64_t ts, uint32_t type) {
    Output *o = &c->out;
    if (!row->sequence) begin_sequence(c, row);
    c->fresh_used = 0;
    output_reserve(o, 4 * PROTO_SLACK);
    Begun begun = {.packet = proto_open(o, PACKET)};
    proto_uint(o, TIMESTAMP, (uint64_t)ts - (uint64_t)row->last);
    row->last = ts;
    proto_uint(o, SEQUENCE, row->sequence);
    proto_uint(o, SEQUENCE_FLAGS, STATE_NEEDED);
    begun.event = proto_open(o, TRACK_EVENT);
    if (type) proto_uint(o, TYPE, type);
    return begun;
}

static void close_event(Encoder *c, Begun begun) {
    static const uint32_t tags[] = {TAG(1, LEN), TAG(2, LEN), TAG(3, LEN)}; /* of InternedData, by kind */
    Output *o = &c->out;
    proto_close(o, begun.event);
    if (c->fresh_used) {
        size_t data = proto_open(o, INTERNED_DATA);
        for (uint32_t i = 0; i < c->fresh_used; i++) {
            const String *text = strings_get(c->fresh[i].id);
            size_t entry = proto_open(o, tags[c->fresh[i].kind]);
            proto_uint(o, TAG(1, VARINT), c->fresh[i].iid);
            proto_text(o, TAG(2, LEN), text->text, text->len);
            proto_close(o, entry);
        }
        proto_close(o, data);
    }
    proto_close(o, begun.packet);
}

static void put_category(Encoder *c, Row *row, uint32_t category) {
    uint32_t iid = intern(c, row, INTERN_CATEGORY, category);
    proto_uint(&c->out, CATEGORY_IID, iid);
}

/* Name and category; the name of a step has its number, and is not kept. */
static void put_identity(Encoder *c, Row *row, const Event *e) {
    put_category(c, row, e->category);
    if (e->flags & FLAG_NUMBERED && e->kind == KIND_SPAN) {
        char text[MAX_NAME + 16];
        const String *name = strings_get(e->name);
        memcpy(text, name->text, name->len);
        proto_text(&c->out, NAME, text, name->len + (size_t)snprintf(text + name->len, 16, "#%d", e->step));
        return;
    }
    uint32_t iid = intern(c, row, INTERN_NAME, e->name);
    proto_uint(&c->out, NAME_IID, iid);
}

static void put_what_is_known(Encoder *c, Row *row, const Event *e) {
    if (e->flags & FLAG_OPEN) put_annotation_true(c, "had not ended");
    if (e->flags & FLAG_CLIPPED) put_annotation_true(c, "was cut");
    if (e->flags & FLAG_ERROR) put_annotation_true(c, "left by exception");
    put_annotations(c, row, e);
}

void put_begin(Encoder *c, Row *row, const Event *e) {
    Begun begun = open_event(c, row, e->ts, SLICE_BEGIN);
    put_identity(c, row, e);
    put_what_is_known(c, row, e);
    close_event(c, begun);
}

void put_end(Encoder *c, Row *row, int64_t ts) { close_event(c, open_event(c, row, ts, SLICE_END)); }

/* An instant with this name, or with that of the event: NULL. */
static void put_named_point(Encoder *c, Row *row, const Event *e, const char *name, size_t len) {
    Begun begun = open_event(c, row, e->ts, INSTANT);
    if (name) put_category(c, row, e->category), proto_text(&c->out, NAME, name, len);
    else put_identity(c, row, e);
    put_annotations(c, row, e);
    if (e->kind == KIND_MEMORY) {
        put_annotation_uint(c, "Addr", e->id);
        if (e->value >= 0 && e->value < 9e18) put_annotation_uint(c, "Total Allocated", (uint64_t)e->value);
    } else if (e->kind > KIND_GAP) put_annotation_uint(c, "unknown kind", e->kind);
    close_event(c, begun);
}

void put_point(Encoder *c, Row *row, const Event *e) {
    put_named_point(c, row, e, e->kind == KIND_MEMORY ? "[memory]" : NULL, 8);
}

/* The letters of the older kinds of events. */
static void put_legacy(Encoder *c, char phase, uint32_t id_tag, uint64_t id, bool bound) {
    size_t legacy = proto_open(&c->out, LEGACY);
    proto_uint(&c->out, LEGACY_PHASE, (uint64_t)phase);
    proto_uint(&c->out, id_tag, id);
    if (bound) proto_uint(&c->out, LEGACY_BIND_TO_ENCLOSING, true);
    proto_close(&c->out, legacy);
}

/* One end of what does not nest on its row: readers find room for such pairs, distinguished by id and category. */
static void put_half(Encoder *c, Row *row, const Event *e, int64_t ts, char phase, uint64_t id, bool whole) {
    Begun begun = open_event(c, row, ts, LEGACY_PHASES);
    put_identity(c, row, e);
    if (whole && e->kind == KIND_GAP && e->id) put_annotation_uint(c, "count", e->id);
    if (whole && e->kind == KIND_SPAN) put_what_is_known(c, row, e);
    else if (whole) put_annotations(c, row, e);
    put_legacy(c, phase, LEGACY_LOCAL_ID, id, false);
    close_event(c, begun);
}

static int64_t end_of(const Event *e) {
    int64_t end;
    return e->dur <= 0 || __builtin_add_overflow(e->ts, e->dur, &end) ? e->ts : end;
}

void put_pair(Encoder *c, Row *row, const Event *e, uint64_t id) {
    put_half(c, row, e, e->ts, 'b', id, true);
    put_half(c, row, e, end_of(e), 'e', id, false);
}

static void put_counter(Encoder *c, Row *row, const Event *e) {
    if (e->value - e->value != 0) { /* a sample that is no number would spoil the counter's row: an instant has it */
        char text[MAX_NAME + 16];
        const String *name = strings_get(e->name);
        const char *what = not_finite_text(e);
        memcpy(text, name->text, name->len);
        memcpy(text + name->len, what, strlen(what));
        put_named_point(c, row, e, text, name->len + strlen(what));
        return;
    }
    if (!row->sequence) begin_sequence(c, row);
    uint64_t uuid = described_counter(c, row, e->name);
    Begun begun = open_event(c, row, e->ts, COUNTER);
    proto_uint(&c->out, TRACK_UUID, uuid);
    proto_double(&c->out, DOUBLE_VALUE, e->value);
    close_event(c, begun);
}

/* Bound to the slice that is open at its time, as its own packets could not be: that slice may come much later. */
static void put_flow(Encoder *c, Row *row, const Event *e) {
    Begun begun = open_event(c, row, e->ts, LEGACY_PHASES);
    put_identity(c, row, e);
    put_annotations(c, row, e);
    char phase = e->kind == KIND_FLOW_START ? 's' : e->kind == KIND_FLOW_STEP ? 't' : 'f';
    put_legacy(c, phase, LEGACY_UNSCOPED_ID, mix(c->base, 'F', e->id), phase != 's');
    close_event(c, begun);
}

/* Events that are neither slices nor instants of a row. */
static void put_other(Encoder *c, const Event *e) {
    Row *row = row_of(c, e->track);
    if (!row) return;
    switch (e->kind) {
    case KIND_SPAN: put_pair(c, row, e, e->id); return; /* does not nest */
    case KIND_COUNTER: put_counter(c, row, e); return;
    case KIND_FLOW_START:
    case KIND_FLOW_STEP:
    case KIND_FLOW_END: put_flow(c, row, e); return;
    case KIND_ASYNC_BEGIN: put_half(c, row, e, e->ts, 'b', e->id, true); return;
    case KIND_ASYNC_END: put_half(c, row, e, e->ts, 'e', e->id, true); return;
    case KIND_GAP: put_pair(c, row, e, (uint64_t)e->ts << 12 ^ e->track); return;
    }
}

static inline bool is_slice(const Event *e) {
    if (e->kind == KIND_SPAN) return !(e->flags & FLAG_ASYNC);
    return e->kind == KIND_INSTANT || e->kind == KIND_MEMORY || e->kind == KIND_METADATA || e->kind == 0 || e->kind > KIND_GAP;
}

/* Puts the numbers of slices and instants into `order`, by row; in a row they stay in their order. */
static bool sort_by_row(Encoder *c) {
    Event e;
    c->active_used = 0;
    for (size_t i = 0; i < c->n; i++) {
        event_at(c, i, &e);
        Row *row = row_of(c, e.track);
        if (!row) return false;
        if (row->count++ == 0) c->active[c->active_used++] = (uint32_t)(row - c->rows);
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < c->active_used; i++) {
        Row *row = &c->rows[c->active[i]];
        row->at = at, at += row->count, row->count = 0;
    }
    for (size_t i = 0; i < c->n; i++) {
        event_at(c, i, &e);
        if (!is_slice(&e)) continue;
        Row *row = row_of(c, e.track);
        c->order[row->at + row->count++] = (uint32_t)i;
    }
    return true;
}

static void put_block(Encoder *c) {
    Event e;
    if (!sort_by_row(c)) return;
    for (uint32_t i = 0; i < c->active_used && !c->out.failed; i++) put_slices(c, c->active[i]);
    /* Flows bind to the slice that is open at their time; readers take what has one time in the order of the file. */
    for (size_t i = 0; i < c->n && !c->out.failed; i++) {
        event_at(c, i, &e);
        if (!is_slice(&e)) put_other(c, &e);
    }
}

/* Delayed begins that were written are in the file by now: the exporter has reported no error. */
static void drop_written(Encoder *c) {
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < c->delayed_count; i++) {
        if (!c->delayed[i].written) c->delayed[waiting++] = c->delayed[i];
        else free(c->delayed[i].args);
    }
    c->delayed_count = c->delayed_before = waiting;
    c->formerly_numbered = c->numbered;
    c->call++;
}

static bool room_for_block(Encoder *c) {
    if (c->n <= c->room) return true;
    size_t n = c->n + 1024;
    free(c->order), free(c->active), free(c->stack), free(c->edges), free(c->nodes);
    c->order = malloc(n * 4), c->active = malloc(n * 4), c->stack = malloc(n * 4), c->edges = malloc(n * 8);
    c->nodes = malloc(n * sizeof *c->nodes);
    c->room = c->order && c->active && c->stack && c->edges && c->nodes ? n : 0;
    return c->room != 0;
}

static bool enter(Encoder *c) { /* encoding lets go of the GIL */
    if (c->busy)
        return PyErr_SetString(PyExc_RuntimeError, "a PerfettoEncoder is used by two threads; give each its own"), false;
    return c->busy = true;
}

static PyObject *encode(Encoder *c, PyObject *args) {
    Py_buffer events, heap;
    int window;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*i:encode", &events, &heap, &window)) return NULL;
    if (events.len % (Py_ssize_t)sizeof(Event))
        PyErr_Format(PyExc_ValueError, "a block of %zd bytes is not made of 64-byte events", events.len);
    else if (enter(c)) {
        c->events = events.buf, c->n = (size_t)events.len / sizeof(Event), c->heap = heap.buf, c->heap_len = (size_t)heap.len;
        drop_written(c);
        if (window != c->window) c->window = window, c->numbered = false;
        if (!room_for_block(c)) PyErr_NoMemory();
        else if (output_open(&c->out, c->n * 36 + c->heap_len)) put_block(c), result = output_close(&c->out);
        c->busy = false;
    }
    PyBuffer_Release(&events);
    PyBuffer_Release(&heap);
    return result;
}

static PyObject *release(Encoder *c, PyObject *unused) {
    if (!enter(c)) return NULL;
    PyObject *result = NULL;
    drop_written(c);
    c->numbered = false;
    if (output_open(&c->out, c->delayed_count * 128)) put_delayed(c, -1), result = output_close(&c->out);
    c->busy = false;
    return result;
}

static PyObject *forget(Encoder *c, PyObject *unused) {
    if (!enter(c)) return NULL;
    for (Row *row = c->rows, *end = row + c->rows_used; row < end; row++) {
        row->sequence = row->count = 0;
        if (row->call == c->call) row->roots = row->former;
    }
    c->numbered = c->formerly_numbered;
    for (uint32_t i = c->delayed_before; i < c->delayed_count; i++) free(c->delayed[i].args);
    c->delayed_count = c->delayed_before;
    for (uint32_t i = 0; i < c->delayed_count; i++) c->delayed[i].written = false;
    if (c->interned) memset(c->interned, 0, c->interned_room * sizeof *c->interned);
    c->interned_used = c->sequences = 0;
    c->busy = false;
    Py_RETURN_NONE;
}

static PyObject *process(Encoder *c, PyObject *pid) {
    long long number = PyLong_AsLongLong(pid);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(process_uuid(c, number));
}

static PyObject *count_delayed(Encoder *c, void *unused) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->delayed_count; i++) n += !c->delayed[i].written;
    return PyLong_FromUnsignedLong(n);
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned long long base;
    long long pid;
    if (!PyArg_ParseTuple(args, "KL:PerfettoEncoder", &base, &pid)) return NULL;
    Encoder *c = (Encoder *)type->tp_alloc(type, 0);
    if (c) c->base = base, c->pid = pid, c->window = -1;
    return (PyObject *)c;
}

static void dealloc(Encoder *c) {
    for (uint32_t i = 0; i < c->delayed_count; i++) free(c->delayed[i].args);
    free(c->rows), free(c->row_of), free(c->interned), free(c->fresh), free(c->delayed), free(c->order), free(c->edges);
    free(c->stack), free(c->active), free(c->nodes);
    Py_TYPE(c)->tp_free((PyObject *)c);
}

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)encode, METH_VARARGS, NULL},
    {"release", (PyCFunction)release, METH_NOARGS, NULL},
    {"forget", (PyCFunction)forget, METH_NOARGS, NULL},
    {"process", (PyCFunction)process, METH_O, NULL},
    {NULL},
};

static PyGetSetDef getset[] = {{"delayed", (getter)count_delayed, NULL, NULL, NULL}, {NULL}};

PyTypeObject PerfettoEncoderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.PerfettoEncoder",
    .tp_basicsize = sizeof(Encoder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_getset = getset,
};
