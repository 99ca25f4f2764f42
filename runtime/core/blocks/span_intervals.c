/* Finds the intervals of time that spans cover, and shares the time of steps among them.
 *
 * `span_intervals` joins the spans of a block that have the same class and track into intervals. Most spans lie in others of
 * their class, and in a block the spans of a thread come in the order of their ends. So the latest interval of a class and
 * track takes in what comes next, or is taken in by it; what that leaves apart the caller joins.
 *
 * Spans of the class `apart` are not joined: the caller leaves out those that hold whole steps. The ones that lie in others
 * get the class `inner`, as they count only if the outer one is left out. */
#include "buffer.h"

#define KEYS 1024 /* slots for classes and tracks of a block; of more than half of that intervals are not joined here */

typedef struct { int64_t class, track, begin, end; } SpanInterval;

typedef struct { int64_t ts, step, track; } Mark;

typedef struct {
    int64_t ts, name;
    double value;
} Reading;

typedef struct {
    Buffer intervals; /* SpanInterval */
    Buffer before;    /* uint32_t of each interval: 1 + the one before it of the same class and track; 0 = none */
    Buffer marks, readings;
    Buffer rare; /* int64_t: spans whose class is not known here */
    uint64_t keys[KEYS];
    uint32_t heads[KEYS], used;
    bool tasks; /* whether an interval is on the track of a task */
} Gathered;

typedef struct {
    const uint8_t *classes;     /* by name */
    const uint16_t *categories; /* of which a name has that class */
    size_t names;
    unsigned signal, ignored;   /* category of counters; class of no interest */
    unsigned apart, inner;      /* class that is not joined; of those that lie in others of it */
} SpanClasses;

static uint32_t *head_of(Gathered *c, uint64_t key) {
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (KEYS - 1);
    while (c->heads[at] && c->keys[at] != key) at = (at + 1) & (KEYS - 1);
    if (!c->heads[at]) {
        if (c->used >= KEYS / 2) {
            c->tasks = true; /* not known */
            return NULL;
        }
        c->used++, c->keys[at] = key;
        c->tasks |= track_get((uint32_t)key)->kind == TRACK_TASK;
    }
    return &c->heads[at];
}

static void add(Gathered *c, int64_t class, uint32_t track, int64_t begin, int64_t end, const SpanClasses *spans) {
    uint32_t *head = head_of(c, (uint64_t)class << 32 | track), last = head ? *head : 0;
    const uint32_t *before = (const uint32_t *)c->before.bytes;
    bool apart = class == spans->apart;
    while (last) {
        SpanInterval *latest = (SpanInterval *)c->intervals.bytes + last - 1;
        if (apart) {
            if (begin > latest->begin || end < latest->end) {
                if (begin >= latest->begin && end <= latest->end) class = spans->inner, head = NULL;
                break;
            }
            latest->class = spans->inner;
            last = before[last - 1];
            continue;
        }
        if (begin > latest->end || end < latest->begin) break;
        if (begin >= latest->begin && end <= latest->end) return;
        if (latest->begin < begin) begin = latest->begin;
        if (latest->end > end) end = latest->end;
        latest->class = -1; /* it is part of the new one */
        last = before[last - 1];
    }
    buffer_put(&c->before, &last, sizeof last);
    buffer_put(&c->intervals, &(SpanInterval){class, track, begin, end}, sizeof(SpanInterval));
    if (head) *head = (uint32_t)(c->before.len / sizeof last);
}

static bool scan(Gathered *c, const char *bytes, size_t n, const SpanClasses *spans) {
    for (size_t i = 0; i < n && !c->before.failed && !c->intervals.failed; i++) {
        Event v;
        memcpy(&v, bytes + i * sizeof v, sizeof v); /* the caller's buffer may be unaligned */
        if (v.kind == KIND_STEP) buffer_put(&c->marks, &(Mark){v.ts, v.step, v.track}, sizeof(Mark));
        else if (v.kind == KIND_COUNTER && v.category == spans->signal)
            buffer_put(&c->readings, &(Reading){v.ts, v.name, v.value}, sizeof(Reading));
        else if (v.kind == KIND_SPAN && v.dur > 0) {
            if (v.name >= spans->names || spans->categories[v.name] != v.category) {
                buffer_put(&c->rare, &(int64_t){(int64_t)i}, sizeof(int64_t));
                continue;
            }
            uint8_t class = spans->classes[v.name];
            int64_t end;
            if (class != spans->ignored && !__builtin_add_overflow(v.ts, v.dur, &end)) add(c, class, v.track, v.ts, end, spans);
        }
    }
    SpanInterval *all = (SpanInterval *)c->intervals.bytes;
    size_t joined = 0;
    for (size_t i = 0; i < c->intervals.len / sizeof *all; i++)
        if (all[i].class >= 0) all[joined++] = all[i];
    c->intervals.len = joined * sizeof *all;
    return !(c->intervals.failed || c->before.failed || c->marks.failed || c->readings.failed || c->rare.failed);
}

static PyObject *bytes_of(Buffer *b) {
    PyObject *bytes = PyBytes_FromStringAndSize((char *)b->bytes, (Py_ssize_t)b->len);
    free(b->bytes);
    return bytes;
}

PyObject *intervals_py_of_spans(PyObject *module, PyObject *args) {
    Py_buffer events, classes, categories;
    SpanClasses spans = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*IIII:span_intervals", &events, &classes, &categories, &spans.signal, &spans.ignored,
                          &spans.apart, &spans.inner))
        return NULL;
    spans.classes = classes.buf, spans.categories = categories.buf, spans.names = (size_t)classes.len;
    PyObject *found = NULL;
    Gathered *c = NULL;
    if (events.len % (Py_ssize_t)sizeof(Event) || categories.len != classes.len * (Py_ssize_t)sizeof(uint16_t)) {
        PyErr_Format(PyExc_ValueError,
                     "a block is a multiple of 64 bytes, and a name has a class and a category: got %zd, %zd, %zd bytes",
                     events.len, classes.len, categories.len);
    } else if ((c = calloc(1, sizeof *c))) {
        size_t n = (size_t)events.len / sizeof(Event);
        PyThreadState *released = release_gil_for(n);
        bool enough = scan(c, events.buf, n, &spans);
        reacquire_gil(released);
        free(c->before.bytes);
        found = Py_BuildValue("NNNNO", bytes_of(&c->intervals), bytes_of(&c->marks), bytes_of(&c->readings), bytes_of(&c->rare),
                              c->tasks ? Py_True : Py_False);
        if (!enough) {
            Py_CLEAR(found);
            PyErr_NoMemory();
        }
        free(c);
    } else PyErr_NoMemory();
    PyBuffer_Release(&events), PyBuffer_Release(&classes), PyBuffer_Release(&categories);
    return found;
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
    unsigned tracks[2];          /* that step */
    unsigned first, last;        /* slots that share time, the first one first */
    unsigned apart, inner;       /* slot of the spans that may hold whole steps, and of those that lie in them */
    const int64_t *marks;
    size_t mark_count;
} Sharing;

/* `out`: ns of each stretch for each slot, then for each how many intervals of the slot begin there, and what they cover. */
static bool share(const SpanInterval *intervals, size_t n, const Sharing *by, const Stretches *s, int64_t *out) {
    size_t counts[SLOTS] = {0}, starts[SLOTS], total = 0;
    uint8_t *slots = malloc(n + 1);
    Interval *memory = malloc((4 * n + 1) * sizeof *memory);
    int64_t *before = calloc(2 * s->count + 1, sizeof *before), *now = before ? before + s->count : NULL;
    bool enough = slots && memory && before;
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
    size_t filled[SLOTS] = {0};
    for (size_t i = 0; enough && i < n; i++)
        if (slots[i] != NO_SLOT)
            memory[starts[slots[i]] + filled[slots[i]]++] = (Interval){intervals[i].begin, intervals[i].end};
    Intervals all = {NULL, 0};
    Interval *room = enough ? memory + 2 * n : NULL, *next_room = enough ? memory + 3 * n : NULL;
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

PyObject *intervals_py_share_time(PyObject *module, PyObject *args) {
    Py_buffer intervals, begins, ends, on_stepping, on_others, marks;
    Sharing by = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*(II)(II)(II):share_time", &intervals, &begins, &ends, &on_stepping, &on_others,
                          &marks, &by.tracks[0], &by.tracks[1], &by.first, &by.last, &by.apart, &by.inner))
        return NULL;
    PyObject *found = NULL;
    Stretches s = {begins.buf, ends.buf, (size_t)begins.len / sizeof(int64_t)};
    by.on_stepping = on_stepping.buf, by.on_others = on_others.buf, by.marks = marks.buf,
    by.mark_count = (size_t)marks.len / sizeof(int64_t);
    if (intervals.len % (Py_ssize_t)sizeof(SpanInterval) || begins.len != ends.len || on_stepping.len != SLOTS ||
        on_others.len != SLOTS || by.first > by.last || by.last >= NO_SLOT || by.apart >= NO_SLOT || by.inner >= NO_SLOT) {
        PyErr_SetString(PyExc_ValueError,
                        "intervals have four numbers, stretches begin and end, and each of 256 classes has a slot");
    } else if ((found =
                    PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(3 * (by.last - by.first + 1) * s.count * sizeof(int64_t))))) {
        int64_t *out = (int64_t *)PyBytes_AS_STRING(found);
        size_t n = (size_t)intervals.len / sizeof(SpanInterval);
        PyThreadState *released = release_gil_for(n + s.count);
        memset(out, 0, 3 * (by.last - by.first + 1) * s.count * sizeof *out);
        bool enough = share(intervals.buf, n, &by, &s, out);
        reacquire_gil(released);
        if (!enough) {
            Py_CLEAR(found);
            PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&intervals), PyBuffer_Release(&begins), PyBuffer_Release(&ends), PyBuffer_Release(&on_stepping);
    PyBuffer_Release(&on_others), PyBuffer_Release(&marks);
    return found;
}

PyObject *intervals_py_ending_after(PyObject *module, PyObject *args) {
    Py_buffer view;
    long long time;
    if (!PyArg_ParseTuple(args, "y*L:intervals_ending_after", &view, &time)) return NULL;
    const SpanInterval *from = view.buf, *end = from + (size_t)view.len / sizeof *from;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, view.len);
    if (bytes) {
        SpanInterval *first = (SpanInterval *)PyBytes_AS_STRING(bytes), *to = first;
        for (; from < end; from++) {
            *to = *from;
            to += from->end > time;
        }
        _PyBytes_Resize(&bytes, (to - first) * (Py_ssize_t)sizeof *to);
    }
    PyBuffer_Release(&view);
    return bytes;
}

PyObject *intervals_py_all_on(PyObject *module, PyObject *args) {
    Py_buffer view;
    long long one, other;
    if (!PyArg_ParseTuple(args, "y*LL:intervals_all_on", &view, &one, &other)) return NULL;
    const SpanInterval *each = view.buf, *end = each + (size_t)view.len / sizeof *each;
    while (each < end && (each->track == one || each->track == other)) each++;
    PyBuffer_Release(&view);
    return PyBool_FromLong(each == end);
}
