/* Draining: moves what threads have written from their rings into one block. One consumer, the GIL released. */
#include "ring.h"

static Ring *plan[MAX_RINGS]; /* rings of the drain under way */
static uint32_t planned, plan_at;
static uint64_t taken_bytes;

uint64_t drain_bytes(void) { return taken_bytes; }

void drain_after_fork(void) {
    planned = plan_at = 0;
    taken_bytes = 0;
}

static uint64_t put_gap(Out *out, const Ring *r, int64_t until, uint64_t missing, uint32_t name) {
    int64_t from = r->last_ts && r->last_ts < until ? r->last_ts : until;
    out->events[out->count++] = (Event){.ts = from, .dur = until - from, .id = missing, .name = name, .track = r->header->track,
                                        .step = -1, .kind = KIND_GAP};
    out->gaps++;
    return missing;
}

/* Copies what was published when the drain began, then drops what a writer that overwrites has overwritten since. */
bool drain_ring(Ring *r, Out *out, uint32_t gap_name) {
    Header *h = r->header;
    uint64_t tail = atomic_load_explicit(&h->tail, memory_order_relaxed);
    uint64_t expected = atomic_load_explicit(&h->serial, memory_order_relaxed);
    uint64_t missing = 0;
    bool whole = true;
    while (tail < r->goal) {
        if (out->count + 2 > out->room) { whole = false; break; }
        Event e = r->data[tail & r->mask];
        atomic_thread_fence(memory_order_acquire);
        uint64_t reserve = atomic_load_explicit(&h->reserve, memory_order_relaxed);
        if (reserve > tail + r->mask + 1 && r->oldest) { tail = reserve - (r->mask + 1); continue; }
        if (e.kind == KIND_MORE) { tail++; continue; }
        uint64_t more = 0;
        if (e.args_len && !(e.flags & FLAG_ARG_INLINE)) {
            more = (e.args_len + PAYLOAD - 1) / PAYLOAD;
            if (out->args_len + e.args_len > out->args_room) { whole = false; break; }
            for (uint64_t i = 0; i < more; i++) {
                const More *m = (const More *)&r->data[(tail + 1 + i) & r->mask];
                uint64_t left = e.args_len - i * PAYLOAD;
                memcpy(out->args + out->args_len + i * PAYLOAD, m->bytes, left < PAYLOAD ? left : PAYLOAD);
            }
            atomic_thread_fence(memory_order_acquire);
            reserve = atomic_load_explicit(&h->reserve, memory_order_relaxed);
            if (reserve > tail + r->mask + 1 && r->oldest) { tail = reserve - (r->mask + 1); continue; }
            e.args_at = (uint32_t)out->args_len;
            out->args_len += e.args_len;
        }
        uint64_t serial = expected + (uint32_t)((uint32_t)e.step - (uint32_t)expected);
        if (serial != expected) missing += put_gap(out, r, e.ts, serial - expected, gap_name);
        expected = serial + 1;
        e.step = e.kind == KIND_STEP ? (int32_t)e.dur : -1;
        if (e.kind == KIND_STEP) e.dur = 0;
        r->last_ts = e.ts + e.dur;
        out->events[out->count++] = e;
        tail += 1 + more;
    }
    /* Dropped at the very end, with nothing written after them yet. */
    if (whole && r->goal_produced > expected && (whole = out->count < out->room)) {
        missing += put_gap(out, r, clock_now(), r->goal_produced - expected, gap_name);
        expected = r->goal_produced;
    }
    atomic_store_explicit(&h->serial, expected, memory_order_release);
    atomic_store_explicit(&r->lost, atomic_load_explicit(&r->lost, memory_order_relaxed) + missing, memory_order_release);
    atomic_store_explicit(&h->tail, tail, memory_order_release);
    return whole;
}

bool out_begin(Out *out, size_t slots) {
    size_t args_room = slots * PAYLOAD + MAX_ARGS_BYTES;
    *out = (Out){.room = slots, .args_room = args_room, .events_object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(slots * sizeof(Event))),
                 .args_object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)args_room)};
    if (out->events_object && out->args_object) {
        out->events = (Event *)PyBytes_AS_STRING(out->events_object);
        out->args = PyBytes_AS_STRING(out->args_object);
        return true;
    }
    Py_CLEAR(out->events_object);
    Py_CLEAR(out->args_object);
    return false;
}

PyObject *out_end(Out *out, bool more) {
    if (_PyBytes_Resize(&out->events_object, (Py_ssize_t)(out->count * sizeof(Event))) < 0 ||
        _PyBytes_Resize(&out->args_object, (Py_ssize_t)out->args_len) < 0) {
        Py_XDECREF(out->events_object);
        Py_XDECREF(out->args_object);
        return NULL;
    }
    return Py_BuildValue("(NNO)", out->events_object, out->args_object, more ? Py_True : Py_False);
}

PyObject *ring_py_drain(PyObject *self, PyObject *limit_object) {
    size_t limit = PyLong_AsSize_t(limit_object), slots = 0;
    if (PyErr_Occurred()) return NULL;
    if (plan_at == planned) planned = rings_to_drain(plan), plan_at = 0;
    for (uint32_t i = plan_at; i < planned; i++) {
        uint64_t used = plan[i]->goal - atomic_load(&plan[i]->header->tail);
        slots += (used > plan[i]->mask ? plan[i]->mask + 1 : used) + 4;
    }
    if (limit < 1024) limit = 1024;
    if (slots > limit) slots = limit;
    if (slots < 1024) slots = 1024;
    Out out;
    if (!out_begin(&out, slots)) return NULL;
    uint32_t gap_name = strings_intern("dropped", 7);
    Py_BEGIN_ALLOW_THREADS
    while (plan_at < planned && drain_ring(plan[plan_at], &out, gap_name)) plan_at++;
    if (plan_at == planned) rings_trim();
    Py_END_ALLOW_THREADS
    taken_bytes += (out.count - out.gaps) * sizeof(Event) + out.args_len;
    return out_end(&out, plan_at < planned);
}
