/* What the spans of a block cover, by class and track: intervals of which those that touch are one.
 *
 * Most spans lie in others of their class, and in a block the spans of a thread come in the order of their ends. So the latest
 * interval of a class and track takes in what comes next, or is taken in by it; what that leaves apart the caller joins.
 *
 * Spans of one class are not joined: the caller leaves out those that are too long. The ones that lie in others get a class
 * of their own, as they count only if the outer one is left out. */
#include "core.h"
#include <stdlib.h>

#define KEYS 1024 /* slots for classes and tracks of a block; of more than half of that intervals are not joined here */

typedef struct {
    int64_t class, track, begin, end;
} Cover;

typedef struct {
    Cover *covers;
    uint32_t *before; /* of each interval: 1 + the one before it of the same class and track; 0 = none */
    int64_t *rare;    /* events that the caller looks at itself */
    size_t count, room, rare_count, rare_room;
    uint64_t keys[KEYS];
    uint32_t heads[KEYS], used;
} Covers;

typedef struct {
    const uint8_t *classes;     /* by name */
    const uint16_t *categories; /* of which a name has that class */
    size_t names;
    unsigned signal, ignored;   /* category of counters; class of no interest */
    unsigned apart, inner;      /* class that is not joined; of those that lie in others of it */
} Facts;

static bool grow(void **memory, size_t *room, size_t size) {
    size_t more = *room ? *room * 2 : 256;
    void *grown = realloc(*memory, more * size);
    if (!grown) return false;
    *memory = grown, *room = more;
    return true;
}

static bool add_rare(Covers *c, size_t event) {
    if (c->rare_count == c->rare_room && !grow((void **)&c->rare, &c->rare_room, sizeof *c->rare)) return false;
    c->rare[c->rare_count++] = (int64_t)event;
    return true;
}

static uint32_t *head_of(Covers *c, uint64_t key) {
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (KEYS - 1);
    while (c->heads[at] && c->keys[at] != key) at = (at + 1) & (KEYS - 1);
    if (!c->heads[at]) {
        if (c->used >= KEYS / 2) return NULL;
        c->used++, c->keys[at] = key;
    }
    return &c->heads[at];
}

static bool add(Covers *c, int64_t class, uint32_t track, int64_t begin, int64_t end, const Facts *facts) {
    uint32_t *head = head_of(c, (uint64_t)class << 32 | track), last = head ? *head : 0;
    bool apart = class == facts->apart;
    while (last) {
        Cover *latest = &c->covers[last - 1];
        if (apart) {
            if (begin > latest->begin || end < latest->end) {
                if (begin >= latest->begin && end <= latest->end) class = facts->inner, head = NULL;
                break;
            }
            latest->class = facts->inner;
            last = c->before[last - 1];
            continue;
        }
        if (begin > latest->end || end < latest->begin) break;
        if (begin >= latest->begin && end <= latest->end) return true;
        if (latest->begin < begin) begin = latest->begin;
        if (latest->end > end) end = latest->end;
        latest->class = -1; /* it is part of the new one */
        last = c->before[last - 1];
    }
    if (c->count == c->room) {
        size_t room = c->room;
        if (!grow((void **)&c->before, &room, sizeof *c->before) || !grow((void **)&c->covers, &c->room, sizeof *c->covers))
            return false;
    }
    c->covers[c->count] = (Cover){class, track, begin, end};
    c->before[c->count++] = last;
    if (head) *head = (uint32_t)c->count;
    return true;
}

static bool scan(Covers *c, const char *bytes, size_t n, const Facts *facts) {
    for (size_t i = 0; i < n; i++) {
        Event v;
        memcpy(&v, bytes + i * sizeof v, sizeof v); /* the caller's buffer may be unaligned */
        if (v.kind == KIND_STEP || (v.kind == KIND_COUNTER && v.category == facts->signal)) {
            if (!add_rare(c, i)) return false;
        } else if (v.kind == KIND_SPAN && v.dur > 0) {
            if (v.name >= facts->names || facts->categories[v.name] != v.category) {
                if (!add_rare(c, i)) return false;
                continue;
            }
            uint8_t class = facts->classes[v.name];
            if (class != facts->ignored && !add(c, class, v.track, v.ts, v.ts + v.dur, facts)) return false;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < c->count; i++)
        if (c->covers[i].class >= 0) c->covers[kept++] = c->covers[i];
    c->count = kept;
    return true;
}

PyObject *covers_py_of(PyObject *module, PyObject *args) {
    Py_buffer events, classes, categories;
    Facts facts = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*IIII:covers", &events, &classes, &categories, &facts.signal, &facts.ignored, &facts.apart,
                          &facts.inner))
        return NULL;
    facts.classes = classes.buf, facts.categories = categories.buf, facts.names = (size_t)classes.len;
    PyObject *found = NULL;
    Covers *c = NULL;
    if (events.len % (Py_ssize_t)sizeof(Event) || categories.len != classes.len * (Py_ssize_t)sizeof(uint16_t)) {
        PyErr_Format(PyExc_ValueError, "a block is a multiple of 64 bytes, and a name has a class and a category: got %zd, %zd, %zd bytes",
                     events.len, classes.len, categories.len);
    } else if ((c = calloc(1, sizeof *c))) {
        bool enough;
        Py_BEGIN_ALLOW_THREADS
        enough = scan(c, events.buf, (size_t)events.len / sizeof(Event), &facts);
        Py_END_ALLOW_THREADS
        if (enough)
            found = Py_BuildValue("(y#y#)", c->covers ? (char *)c->covers : "", (Py_ssize_t)(c->count * sizeof *c->covers),
                                  c->rare ? (char *)c->rare : "", (Py_ssize_t)(c->rare_count * sizeof *c->rare));
        else PyErr_NoMemory();
        free(c->covers), free(c->before), free(c->rare), free(c);
    } else PyErr_NoMemory();
    PyBuffer_Release(&events), PyBuffer_Release(&classes), PyBuffer_Release(&categories);
    return found;
}
