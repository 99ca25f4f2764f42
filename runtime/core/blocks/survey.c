/* Facts of a block of events, in one pass: a pass of numpy for each question costs more, and hands the GIL over each time, which a
 * program that computes in Python gives back after 5 ms only. */
#include "core.h"

#define MAX_EVENTS_WITH_GIL (1 << 18) /* a pass over no more takes a millisecond at most */

static uint16_t operators; /* category of operators */
static bool quiet[1 << 16]; /* by category: recorded all the time, whatever the program does */

PyObject *survey_py_set_categories(PyObject *self, PyObject *args) {
    unsigned int category;
    PyObject *others;
    if (!PyArg_ParseTuple(args, "IO!", &category, &PyTuple_Type, &others)) return NULL;
    operators = (uint16_t)category;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(others); i++) {
        unsigned long each = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(others, i));
        if (PyErr_Occurred()) return NULL;
        quiet[(uint16_t)each] = true;
    }
    Py_RETURN_NONE;
}

static bool get_events(PyObject *block, Py_buffer *view) {
    if (PyObject_GetBuffer(block, view, PyBUF_C_CONTIGUOUS) < 0) return false;
    if (view->len % (Py_ssize_t)sizeof(Event) == 0) return true;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "a block has whole events");
    return false;
}

PyObject *survey_py_unnamed_tracks(PyObject *self, PyObject *args) {
    PyObject *block, *found = PySet_New(NULL);
    Py_buffer view, named;
    if (!found || !PyArg_ParseTuple(args, "Oy*", &block, &named)) return Py_XDECREF(found), NULL;
    if (!get_events(block, &view)) return PyBuffer_Release(&named), Py_DECREF(found), NULL;
    uint32_t before = 0;
    bool any = false;
    for (Py_ssize_t at = 0; at < view.len && found; at += (Py_ssize_t)sizeof(Event)) {
        uint32_t track;
        memcpy(&track, (const char *)view.buf + at + offsetof(Event, track), sizeof track);
        if ((any && track == before) || (track < (size_t)named.len && ((const char *)named.buf)[track])) continue;
        before = track, any = true;
        PyObject *id = PyLong_FromUnsignedLong(track);
        if (!id || PySet_Add(found, id) < 0) Py_CLEAR(found);
        Py_XDECREF(id);
    }
    PyBuffer_Release(&named);
    PyBuffer_Release(&view);
    return found;
}

static bool in_heap(const Event *e) { return e->args_len && !(e->flags & FLAG_ARG_INLINE); }

static bool lasts(const Event *e) { return e->kind == KIND_SPAN || e->kind == KIND_GAP; }

/* The fields of `Survey` in runtime/events/survey.py. */
PyObject *survey_py_survey(PyObject *self, PyObject *block) {
    Py_buffer view;
    if (!get_events(block, &view)) return NULL;
    size_t count = (size_t)view.len / sizeof(Event);
    int64_t first = INT64_MAX, last = INT64_MIN, end = INT64_MIN, loud_last = INT64_MIN, own_last = INT64_MIN,
            last_mark = INT64_MIN;
    int32_t first_step = INT32_MAX, last_step = -1;
    unsigned long long kinds[KIND_GAP + 2] = {0}, of_operators = 0, arguments = 0, loud = 0, lost = 0, heap = 0;
    PyThreadState *released = count > MAX_EVENTS_WITH_GIL ? PyEval_SaveThread() : NULL;
    for (size_t i = 0; i < count; i++) {
        Event e; /* a block of a backend may lie anywhere */
        memcpy(&e, (const char *)view.buf + i * sizeof e, sizeof e);
        int64_t until = lasts(&e) ? (int64_t)((uint64_t)e.ts + (uint64_t)e.dur) : e.ts;
        if (e.ts < first) first = e.ts;
        if (e.ts > last) last = e.ts;
        if (until > end) end = until;
        if (e.step >= 0 && e.step < first_step) first_step = e.step;
        if (e.step > last_step) last_step = e.step;
        bool low = e.category == operators, is_loud = !quiet[e.category];
        if (is_loud && e.ts > loud_last) loud_last = e.ts;
        if (is_loud && e.kind != KIND_STEP && e.ts > own_last) own_last = e.ts;
        loud += is_loud && e.kind != KIND_STEP;
        of_operators += low;
        kinds[low ? KIND_GAP + 1 : e.kind <= KIND_GAP ? e.kind : 0]++;
        arguments += !low && in_heap(&e);
        heap += in_heap(&e) ? e.args_len : 0;
        if (e.kind == KIND_STEP && e.ts > last_mark) last_mark = e.ts;
        if (e.kind == KIND_GAP) lost += e.id;
    }
    reacquire_gil(released);
    PyBuffer_Release(&view);
    unsigned long long others = count - of_operators - kinds[KIND_SPAN] - kinds[KIND_STEP] - kinds[KIND_GAP];
    return Py_BuildValue("nLLLKKKKKKKKLLiiLK", (Py_ssize_t)count, (long long)first, (long long)last, (long long)end,
                         kinds[KIND_SPAN], kinds[KIND_STEP], kinds[KIND_GAP], others, of_operators, arguments, lost, loud,
                         (long long)loud_last, (long long)own_last, (int)first_step, (int)last_step, (long long)last_mark,
                         heap);
}

PyObject *survey_py_with_steps(PyObject *self, PyObject *args) {
    PyObject *block, *copy = NULL;
    Py_buffer view, begins, numbers;
    int in_place = 0;
    int32_t first_step = INT32_MAX, last_step = -1;
    if (!PyArg_ParseTuple(args, "Oy*y*|p:with_steps", &block, &begins, &numbers, &in_place)) return NULL;
    size_t steps = (size_t)begins.len / sizeof(int64_t), at = 0;
    if (!steps || (size_t)numbers.len / sizeof(int32_t) != steps) {
        PyErr_SetString(PyExc_ValueError, "each step has a begin and a number, and there is one at least");
    } else if (get_events(block, &view)) {
        size_t count = (size_t)view.len / sizeof(Event);
        const int64_t *begin = begins.buf;
        const int32_t *number = numbers.buf;
        if (in_place && view.readonly) PyErr_SetString(PyExc_ValueError, "the block cannot be written");
        else if ((copy = in_place ? Py_NewRef(block) : PyByteArray_FromStringAndSize(NULL, view.len))) {
            char *to = in_place ? view.buf : PyByteArray_AS_STRING(copy);
            PyThreadState *released = count > MAX_EVENTS_WITH_GIL ? PyEval_SaveThread() : NULL;
            for (size_t i = 0; i < count; i++) {
                char *event = to + i * sizeof(Event);
                if (!in_place) memcpy(event, (const char *)view.buf + i * sizeof(Event), sizeof(Event));
                int64_t ts;
                memcpy(&ts, event + offsetof(Event, ts), sizeof ts);
                if (begin[at] > ts || (at + 1 < steps && begin[at + 1] <= ts)) { /* neighbours are of one step */
                    size_t begun = times_until(begin, 1, steps, ts);
                    at = begun ? begun - 1 : 0;
                }
                int32_t step = number[at];
                memcpy(event + offsetof(Event, step), &step, sizeof step);
                if (step >= 0 && step < first_step) first_step = step;
                if (step > last_step) last_step = step;
            }
            reacquire_gil(released);
        }
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&begins);
    PyBuffer_Release(&numbers);
    return copy ? Py_BuildValue("(Nii)", copy, (int)first_step, (int)last_step) : NULL;
}

PyObject *survey_py_step_spans(PyObject *self, PyObject *args) {
    Py_buffer begins, parents, numbers, tracks;
    long long end;
    unsigned int elsewhere, name, category;
    if (!PyArg_ParseTuple(args, "y*y*y*y*LIII:step_spans", &begins, &parents, &numbers, &tracks, &end, &elsewhere, &name,
                          &category))
        return NULL;
    size_t marks = (size_t)begins.len / sizeof(int64_t);
    const int64_t *begin = begins.buf;
    const uint64_t *parent = parents.buf;
    const int32_t *number = numbers.buf;
    const uint32_t *track = tracks.buf;
    PyObject *array = NULL;
    if ((size_t)parents.len != marks * sizeof *parent || (size_t)numbers.len != marks * sizeof *number ||
        (size_t)tracks.len != marks * sizeof *track) {
        PyErr_SetString(PyExc_ValueError, "each step has a begin, a span around it, a number and a track");
    } else {
        size_t ended = marks && end > begin[marks - 1] ? marks : marks ? marks - 1 : 0;
        array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(ended * sizeof(Event)));
        Event *spans = array ? (Event *)PyByteArray_AS_STRING(array) : NULL;
        for (size_t i = 0; spans && i < ended; i++) {
            bool last = i + 1 == marks;
            bool nests = track[i] && (last || (track[i] == track[i + 1] && parent[i] == parent[i + 1]));
            spans[i] = (Event){.ts = begin[i],
                               .dur = (int64_t)((uint64_t)(last ? end : begin[i + 1]) - (uint64_t)begin[i]),
                               .parent = nests ? parent[i] : 0,
                               .name = name,
                               .track = nests ? track[i] : elsewhere,
                               .step = number[i],
                               .category = (uint16_t)category,
                               .kind = KIND_SPAN,
                               .flags = FLAG_NUMBERED};
        }
    }
    PyBuffer_Release(&begins);
    PyBuffer_Release(&parents);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&tracks);
    return array;
}

static bool touches(const Event *e, int64_t start, int64_t end) {
    return e->ts < end && (e->ts >= start || (lasts(e) && (int64_t)((uint64_t)e->ts + (uint64_t)e->dur) > start));
}

PyObject *survey_py_part(PyObject *self, PyObject *args) {
    PyObject *block;
    unsigned int kind;
    long long start, end;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OILL:part_of_block", &block, &kind, &start, &end) || !get_events(block, &view)) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, view.len);
    if (bytes) {
        size_t count = (size_t)view.len / sizeof(Event);
        Event *to = (Event *)PyBytes_AS_STRING(bytes), *first = to;
        PyThreadState *released = count > MAX_EVENTS_WITH_GIL ? PyEval_SaveThread() : NULL;
        for (const char *from = view.buf, *last = from + view.len; from < last; from += sizeof(Event)) {
            if (kind && (uint8_t)from[offsetof(Event, kind)] != kind) continue;
            memcpy(to, from, sizeof(Event));
            to += touches(to, start, end);
        }
        reacquire_gil(released);
        _PyBytes_Resize(&bytes, (to - first) * (Py_ssize_t)sizeof(Event));
    }
    PyBuffer_Release(&view);
    return bytes;
}

PyObject *survey_py_count_touching(PyObject *self, PyObject *args) {
    PyObject *block;
    Py_buffer view, pairs;
    if (!PyArg_ParseTuple(args, "Oy*:count_touching", &block, &pairs)) return NULL;
    unsigned long long touching = 0;
    bool good = get_events(block, &view);
    if (good) {
        size_t count = (size_t)view.len / sizeof(Event), n = (size_t)pairs.len / (2 * sizeof(int64_t)), at = 0;
        const int64_t *interval = pairs.buf;
        PyThreadState *released = count > MAX_EVENTS_WITH_GIL ? PyEval_SaveThread() : NULL;
        for (size_t i = 0; n && i < count; i++) {
            Event e;
            memcpy(&e, (const char *)view.buf + i * sizeof e, sizeof e);
            if (e.kind == KIND_GAP) continue;
            /* The first interval that ends after it began; neighbours lie in one. */
            if (interval[2 * at + 1] <= e.ts || (at && interval[2 * at - 1] > e.ts)) {
                at = times_until(interval + 1, 2, n, e.ts);
                if (at == n) at = n - 1;
            }
            touching += touches(&e, interval[2 * at], interval[2 * at + 1]);
        }
        reacquire_gil(released);
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&pairs);
    return good ? PyLong_FromUnsignedLongLong(touching) : NULL;
}

PyObject *survey_py_heap_range(PyObject *self, PyObject *block) {
    Py_buffer view;
    if (!get_events(block, &view)) return NULL;
    unsigned long long first = UINT64_MAX, end = 0, total = 0;
    for (const char *at = view.buf, *last = at + view.len; at < last; at += sizeof(Event)) {
        Event e;
        memcpy(&e, at, sizeof e);
        if (!in_heap(&e)) continue;
        if (e.args_at < first) first = e.args_at;
        if ((uint64_t)e.args_at + e.args_len > end) end = (uint64_t)e.args_at + e.args_len;
        total += e.args_len;
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("KKK", total ? first : 0, end, total);
}
