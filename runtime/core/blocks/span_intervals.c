/* Finds the intervals of time that spans cover, and shares the time of steps among them.
 *
 * `add` joins the spans of a block that have the same class and track into intervals. Most spans lie in others of their
 * class, and in a block the spans of a thread come in the order of their ends. So the latest interval of a class and track
 * takes in what comes next, or is taken in by it; what that leaves apart `share_time` joins.
 *
 * Spans of the class `apart` are not joined: `share_time` leaves out those that hold whole steps. The ones that lie in others
 * get the class `inner`, as they count only if the outer one is left out. */
#include "buffer.h"

#define KEYS 1024 /* slots for classes and tracks of a block; of more than half of that intervals are not joined here */
#define SPARE (64u << 10) /* bytes that stay allocated when intervals are dropped */

typedef struct { int64_t class, track, begin, end; } SpanInterval;

typedef struct {
    PyObject_HEAD
    Buffer intervals; /* SpanInterval, until they are dropped */
    Buffer before; /* uint32_t of each of a block: 1 + the one before it of the same class and track; 0 = none */
    unsigned ignored, apart, inner; /* class of no interest; that is not joined; of those that lie in others of it */
    bool tasks; /* whether an interval may be on the track of a task */
    bool busy; /* a thread without the GIL is in it */
} SpanIntervals;

typedef struct {
    uint64_t keys[KEYS]; /* class and track */
    uint32_t heads[KEYS], used; /* the latest interval of each key: see `before` */
} Latest;

typedef struct { int64_t ts, step, track; } Mark;

typedef struct {
    int64_t ts, name;
    double value;
} Reading;

typedef struct {
    Buffer marks, readings;
    Buffer rare; /* int64_t: spans whose class is not known here */
} Others;

typedef struct {
    const uint8_t *classes; /* by name */
    const uint16_t *categories; /* of which a name has that class */
    size_t names;
    unsigned signal; /* category of counters */
} Names;

static SpanInterval *items(const SpanIntervals *v) { return (SpanInterval *)v->intervals.bytes; }
static size_t item_count(const SpanIntervals *v) { return v->intervals.len / sizeof(SpanInterval); }

/* Fails with an exception if another thread is in it: one thread at a time may use it. */
static bool enter(SpanIntervals *v) {
    if (v->busy) PyErr_SetString(PyExc_RuntimeError, "SpanIntervals is used by two threads at once");
    else v->busy = true;
    return !PyErr_Occurred();
}

static uint32_t *head_of(SpanIntervals *v, Latest *latest, uint64_t key) {
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (KEYS - 1);
    while (latest->heads[at] && latest->keys[at] != key) at = (at + 1) & (KEYS - 1);
    if (!latest->heads[at]) {
        if (latest->used >= KEYS / 2) {
            v->tasks = true; /* not known */
            return NULL;
        }
        latest->used++, latest->keys[at] = key;
        v->tasks |= track_get((uint32_t)key)->kind == TRACK_TASK;
    }
    return &latest->heads[at];
}

/* Adds a span to the intervals of its block, which begin at `first`. */
static void add_span(SpanIntervals *v, Latest *heads, size_t first, SpanInterval one) {
    uint32_t *head = head_of(v, heads, (uint64_t)one.class << 32 | (uint32_t)one.track), last = head ? *head : 0;
    const uint32_t *before = (const uint32_t *)v->before.bytes;
    bool apart = one.class == v->apart;
    while (last) {
        SpanInterval *latest = items(v) + first + last - 1;
        if (apart) {
            if (one.begin > latest->begin || one.end < latest->end) {
                if (one.begin >= latest->begin && one.end <= latest->end) one.class = v->inner, head = NULL;
                break;
            }
            latest->class = v->inner;
            last = before[last - 1];
            continue;
        }
        if (one.begin > latest->end || one.end < latest->begin) break;
        if (one.begin >= latest->begin && one.end <= latest->end) return;
        if (latest->begin < one.begin) one.begin = latest->begin;
        if (latest->end > one.end) one.end = latest->end;
        latest->class = -1; /* it is part of the new one */
        last = before[last - 1];
    }
    buffer_put(&v->before, &last, sizeof last);
    buffer_put(&v->intervals, &one, sizeof one);
    if (head) *head = (uint32_t)(v->before.len / sizeof last);
}

static bool scan(SpanIntervals *v, const char *bytes, size_t n, const Names *names, Others *others) {
    size_t first = item_count(v), joined = first;
    Latest heads = {0};
    v->before.len = 0;
    for (size_t i = 0; i < n && !v->before.failed && !v->intervals.failed; i++) {
        Event e;
        memcpy(&e, bytes + i * sizeof e, sizeof e); /* the caller's buffer may be unaligned */
        if (e.kind == KIND_STEP) buffer_put(&others->marks, &(Mark){e.ts, e.step, e.track}, sizeof(Mark));
        else if (e.kind == KIND_COUNTER && e.category == names->signal)
            buffer_put(&others->readings, &(Reading){e.ts, e.name, e.value}, sizeof(Reading));
        else if (e.kind == KIND_SPAN && e.dur > 0) {
            if (e.name >= names->names || names->categories[e.name] != e.category) {
                buffer_put(&others->rare, &(int64_t){(int64_t)i}, sizeof(int64_t));
                continue;
            }
            uint8_t class = names->classes[e.name];
            int64_t end;
            if (class != v->ignored && !__builtin_add_overflow(e.ts, e.dur, &end))
                add_span(v, &heads, first, (SpanInterval){class, e.track, e.ts, end});
        }
    }
    for (size_t i = first; i < item_count(v); i++)
        if (items(v)[i].class >= 0) items(v)[joined++] = items(v)[i];
    v->intervals.len = joined * sizeof(SpanInterval);
    return !(v->intervals.failed || v->before.failed || others->marks.failed || others->readings.failed || others->rare.failed);
}

static PyObject *bytes_of(Buffer *b) {
    PyObject *bytes = PyBytes_FromStringAndSize((char *)b->bytes, (Py_ssize_t)b->len);
    free(b->bytes);
    return bytes;
}

static PyObject *add(SpanIntervals *v, PyObject *args) {
    Py_buffer events, classes, categories;
    Names names = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*I:add", &events, &classes, &categories, &names.signal)) return NULL;
    names.classes = classes.buf, names.categories = categories.buf, names.names = (size_t)classes.len;
    PyObject *found = NULL;
    if (events.len % (Py_ssize_t)sizeof(Event) || categories.len != classes.len * (Py_ssize_t)sizeof(uint16_t)) {
        PyErr_Format(PyExc_ValueError,
                     "a block is a multiple of 64 bytes, and a name has a class and a category: got %zd, %zd, %zd bytes",
                     events.len, classes.len, categories.len);
    } else if (enter(v)) {
        size_t n = (size_t)events.len / sizeof(Event);
        Others others = {0};
        PyThreadState *released = release_gil_for(n);
        bool enough = scan(v, events.buf, n, &names, &others);
        reacquire_gil(released);
        v->busy = v->intervals.failed = v->before.failed = false;
        found = Py_BuildValue("NNN", bytes_of(&others.marks), bytes_of(&others.readings), bytes_of(&others.rare));
        if (!enough) {
            Py_CLEAR(found);
            PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&events), PyBuffer_Release(&classes), PyBuffer_Release(&categories);
    return found;
}

static PyObject *extend(SpanIntervals *v, PyObject *more) {
    Py_buffer view;
    if (PyObject_GetBuffer(more, &view, PyBUF_SIMPLE) < 0) return NULL;
    bool fits = view.len % (Py_ssize_t)sizeof(SpanInterval) == 0;
    if (!fits) PyErr_Format(PyExc_ValueError, "an interval has 32 bytes: got %zd", view.len);
    else if ((fits = enter(v))) {
        size_t from = item_count(v);
        buffer_put(&v->intervals, view.buf, (size_t)view.len);
        if ((fits = !v->intervals.failed))
            for (size_t i = from; i < item_count(v); i++)
                v->tasks |= track_get((uint32_t)items(v)[i].track)->kind == TRACK_TASK;
        else PyErr_NoMemory();
        v->busy = v->intervals.failed = false;
    }
    PyBuffer_Release(&view);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyObject *drop_until(SpanIntervals *v, PyObject *at) {
    int64_t time = PyLong_AsLongLong(at);
    if (PyErr_Occurred() || !enter(v)) return NULL;
    SpanInterval *to = items(v);
    for (size_t i = 0; i < item_count(v); i++) {
        *to = items(v)[i];
        to += to->end > time;
    }
    v->intervals.len = (size_t)(to - items(v)) * sizeof *to;
    if (v->intervals.room > SPARE + 8 * v->intervals.len) {
        uint8_t *smaller = realloc(v->intervals.bytes, v->intervals.len + SPARE);
        if (smaller) v->intervals.bytes = smaller, v->intervals.room = v->intervals.len + SPARE;
    }
    v->busy = false;
    Py_RETURN_NONE;
}

static PyObject *ends(SpanIntervals *v, PyObject *stride) {
    size_t every = PyLong_AsSize_t(stride), found = 0;
    if (PyErr_Occurred()) return NULL;
    if (!every) return PyErr_Format(PyExc_ValueError, "0 is no distance");
    if (!enter(v)) return NULL;
    size_t count = item_count(v) / every + (item_count(v) % every != 0);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(int64_t)));
    int64_t *out = bytes ? (int64_t *)PyBytes_AS_STRING(bytes) : NULL;
    for (; out && found < count; found++) out[found] = items(v)[found * every].end;
    v->busy = false;
    return bytes;
}

static PyObject *to_bytes(SpanIntervals *v, PyObject *unused) {
    if (!enter(v)) return NULL;
    v->busy = false;
    return PyBytes_FromStringAndSize((char *)v->intervals.bytes, (Py_ssize_t)v->intervals.len);
}

/* `share_time` measures what intervals cover of each step, or of another stretch of time. Each ns counts once: for the first
 * of the slots whose intervals cover it. */

#define SLOTS 256
#define NO_SLOT 255

typedef struct { int64_t begin, end; } Interval;

typedef struct {
    Interval *all;
    size_t count;
} Intervals;

static int by_begin(const void *one, const void *other) {
    int64_t a = ((const Interval *)one)->begin, b = ((const Interval *)other)->begin;
    return (a > b) - (a < b);
}

/* Sorts intervals. They come nearly in order: only what was open when a block ended comes after what lies in it. */
static void in_order(Intervals *v) {
    size_t moves = 0;
    for (size_t i = 1; i < v->count; i++) {
        Interval one = v->all[i];
        size_t at = i;
        while (at && v->all[at - 1].begin > one.begin) v->all[at] = v->all[at - 1], at--;
        v->all[at] = one;
        if ((moves += i - at) > 8 * v->count) {
            qsort(v->all, v->count, sizeof *v->all, by_begin);
            return;
        }
    }
}

/* Sorts intervals, and joins those that touch. */
static void join(Intervals *v) {
    size_t joined = 0;
    in_order(v);
    for (size_t i = 0; i < v->count; i++) {
        if (joined && v->all[i].begin <= v->all[joined - 1].end) {
            if (v->all[i].end > v->all[joined - 1].end) v->all[joined - 1].end = v->all[i].end;
        } else v->all[joined++] = v->all[i];
    }
    v->count = joined;
}

/* Adds what is joined and in order to what is, into a third array with room for both. */
static void join_both(const Intervals *one, const Intervals *other, Intervals *both) {
    size_t a = 0, b = 0;
    both->count = 0;
    while (a < one->count || b < other->count) {
        bool first = b == other->count || (a < one->count && one->all[a].begin <= other->all[b].begin);
        const Interval *next = first ? &one->all[a++] : &other->all[b++];
        Interval *last = both->count ? &both->all[both->count - 1] : NULL;
        if (last && next->begin <= last->end) {
            if (next->end > last->end) last->end = next->end;
        } else both->all[both->count++] = *next;
    }
}

typedef struct {
    const int64_t *begins, *ends; /* of stretches, in order and apart */
    size_t count;
} Stretches;

/* Measures, in each stretch, the ns that intervals cover, which are in order and apart; and counts those that begin in it. */
static void measure(const Intervals *v, const Stretches *s, int64_t *ns, int64_t *begun) {
    size_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        int64_t begin = s->begins[i], end = s->ends[i], count = 0;
        uint64_t sum = 0; /* times that a file says may be any */
        while (at < v->count && v->all[at].end <= begin) at++;
        for (size_t j = at; j < v->count && v->all[j].begin < end; j++) {
            int64_t from = v->all[j].begin > begin ? v->all[j].begin : begin, to = v->all[j].end < end ? v->all[j].end : end;
            sum += (uint64_t)to - (uint64_t)from;
            count += v->all[j].begin >= begin;
        }
        ns[i] = (int64_t)sum;
        if (begun) begun[i] = count;
    }
}

/* Leaves out the intervals that hold a whole step: two step marks or more lie within. */
static void drop_enclosing(Intervals *v, const int64_t *marks, size_t count) {
    size_t joined = 0, at = 0;
    for (size_t i = 0; i < v->count; i++) { /* in order */
        while (at < count && marks[at] <= v->all[i].begin) at++;
        if (at + 1 < count && marks[at + 1] < v->all[i].end) continue;
        v->all[joined++] = v->all[i];
    }
    v->count = joined;
}

typedef struct {
    const uint8_t *on_stepping,
        *on_others; /* the slot of each class, on the tracks that step and on others; `NO_SLOT` = none */
    unsigned tracks[2]; /* that step */
    unsigned first, last; /* slots that share time, the first one first */
    unsigned apart, inner; /* slot of the spans that may hold whole steps, and of those that lie in them */
    const int64_t *marks;
    size_t mark_count;
} Sharing;

/* `out`: ns of each stretch for each slot, then for each how many intervals of the slot begin there, and what they cover. */
static bool share(const SpanInterval *intervals, size_t n, const Sharing *by, const Stretches *s, int64_t *out) {
    size_t counts[SLOTS] = {0}, starts[SLOTS], total = 0;
    uint8_t *slots = malloc(n + 1);
    Interval *memory = NULL;
    int64_t *before = calloc(2 * s->count + 1, sizeof *before), *now = before ? before + s->count : NULL;
    bool enough = slots && before;
    int64_t first = s->count ? s->begins[0] : 0, last = s->count ? s->ends[s->count - 1] : 0;
    for (size_t i = 0; enough && i < n; i++) {
        bool out_of_range = intervals[i].begin >= last || intervals[i].end <= first;
        bool stepping = intervals[i].track == by->tracks[0] || intervals[i].track == by->tracks[1];
        slots[i] = out_of_range ? NO_SLOT : (stepping ? by->on_stepping : by->on_others)[(uint8_t)intervals[i].class];
        counts[slots[i]]++;
    }
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        starts[slot] = total;
        total += slot == NO_SLOT ? 0 : counts[slot];
        if (slot == by->apart) total += counts[by->inner];
    }
    /* The intervals in slots, those covered by now, and both together. */
    enough = enough && (memory = malloc((3 * total + 1) * sizeof *memory));
    size_t filled[SLOTS] = {0};
    for (size_t i = 0; enough && i < n; i++)
        if (slots[i] != NO_SLOT)
            memory[starts[slots[i]] + filled[slots[i]]++] = (Interval){intervals[i].begin, intervals[i].end};
    Intervals all = {NULL, 0};
    Interval *room = enough ? memory + total : NULL, *next_room = enough ? memory + 2 * total : NULL;
    for (unsigned slot = by->first; enough && slot <= by->last; slot++) {
        int64_t *ns = out + (slot - by->first) * 3 * s->count, *begun = ns + s->count, *covered = begun + s->count;
        Intervals mine = {memory + starts[slot], counts[slot]};
        if (!mine.count) continue;
        if (slot == by->apart) {
            in_order(&mine);
            drop_enclosing(&mine, by->marks, by->mark_count);
            if (mine.count < counts[slot] && counts[by->inner]) {
                Intervals inner = {memory + starts[by->inner], counts[by->inner]};
                in_order(&inner);
                drop_enclosing(&inner, by->marks, by->mark_count);
                memcpy(mine.all + mine.count, inner.all, inner.count * sizeof *inner.all);
                mine.count += inner.count;
            }
        }
        join(&mine);
        measure(&mine, s, covered, begun);
        if (all.count) {
            Intervals both = {room, 0};
            join_both(&all, &mine, &both);
            room = next_room, next_room = both.all, all = both;
            measure(&all, s, now, NULL);
        } else {
            all = mine;
            memcpy(now, covered, s->count * sizeof *now);
        }
        for (size_t i = 0; i < s->count; i++) ns[i] = (int64_t)((uint64_t)now[i] - (uint64_t)before[i]), before[i] = now[i];
    }
    free(slots), free(memory), free(before);
    return enough;
}

static PyObject *share_time(SpanIntervals *v, PyObject *args) {
    Py_buffer begins, ends, on_stepping, on_others, marks;
    Sharing by = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*(II)(II):share_time", &begins, &ends, &on_stepping, &on_others, &marks,
                          &by.tracks[0], &by.tracks[1], &by.first, &by.last))
        return NULL;
    PyObject *found = NULL;
    Stretches s = {begins.buf, ends.buf, (size_t)begins.len / sizeof(int64_t)};
    by.on_stepping = on_stepping.buf, by.on_others = on_others.buf, by.marks = marks.buf,
    by.mark_count = (size_t)marks.len / sizeof(int64_t), by.apart = v->apart, by.inner = v->inner;
    if (begins.len != ends.len || on_stepping.len != SLOTS || on_others.len != SLOTS || by.first > by.last ||
        by.last >= NO_SLOT) {
        PyErr_SetString(PyExc_ValueError, "stretches begin and end, and each of 256 classes has a slot");
    } else if ((found =
                    PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(3 * (by.last - by.first + 1) * s.count * sizeof(int64_t)))) &&
               enter(v)) {
        int64_t *out = (int64_t *)PyBytes_AS_STRING(found);
        PyThreadState *released = release_gil_for(item_count(v) + s.count);
        memset(out, 0, 3 * (by.last - by.first + 1) * s.count * sizeof *out);
        bool enough = share(items(v), item_count(v), &by, &s, out);
        reacquire_gil(released);
        v->busy = false;
        if (!enough) PyErr_NoMemory();
    }
    if (PyErr_Occurred()) Py_CLEAR(found);
    PyBuffer_Release(&begins), PyBuffer_Release(&ends), PyBuffer_Release(&on_stepping), PyBuffer_Release(&on_others);
    PyBuffer_Release(&marks);
    return found;
}

static PyObject *new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned ignored, apart, inner;
    if (!PyArg_ParseTuple(args, "III:SpanIntervals", &ignored, &apart, &inner)) return NULL;
    if (apart >= NO_SLOT || inner >= NO_SLOT) return PyErr_Format(PyExc_ValueError, "classes are below 255");
    SpanIntervals *v = (SpanIntervals *)type->tp_alloc(type, 0);
    if (v) v->ignored = ignored, v->apart = apart, v->inner = inner;
    return (PyObject *)v;
}

static void dealloc(SpanIntervals *v) {
    free(v->intervals.bytes), free(v->before.bytes);
    Py_TYPE(v)->tp_free(v);
}

static Py_ssize_t length(SpanIntervals *v) { return (Py_ssize_t)item_count(v); }

static PyObject *get_tasks(SpanIntervals *v, void *unused) { return PyBool_FromLong(v->tasks); }

static PyMethodDef methods[] = {
    {"add", (PyCFunction)add, METH_VARARGS, NULL},
    {"extend", (PyCFunction)extend, METH_O, NULL},
    {"drop_until", (PyCFunction)drop_until, METH_O, NULL},
    {"ends", (PyCFunction)ends, METH_O, NULL},
    {"to_bytes", (PyCFunction)to_bytes, METH_NOARGS, NULL},
    {"share_time", (PyCFunction)share_time, METH_VARARGS, NULL},
    {NULL},
};

PyTypeObject SpanIntervalsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.SpanIntervals",
    .tp_basicsize = sizeof(SpanIntervals),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
    .tp_as_sequence = &(PySequenceMethods){.sq_length = (lenfunc)length},
    .tp_getset = (PyGetSetDef[]){{"tasks", (getter)get_tasks, NULL, NULL, NULL}, {NULL}},
};
