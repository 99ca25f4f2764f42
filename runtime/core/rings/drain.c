/* Draining: moves what threads have written from their rings into one block. One consumer, the GIL released. */
#include "rings/ring.h"

static Ring *plan[MAX_RINGS]; /* rings of the drain under way */
static uint32_t planned, plan_at;
static uint64_t drained_bytes;
bool g_late_release;
static atomic_ullong ringless; /* events without a ring that were reported */
static int64_t drained_at;

uint64_t drain_bytes(void) { return drained_bytes; }
uint64_t drain_ringless(void) { return atomic_load(&ringless); }

void drain_after_fork(void) {
    g_late_release = false;
    planned = plan_at = 0;
    drained_bytes = 0;
    atomic_store(&ringless, 0);
    overflow_after_fork();
    main_thread_after_fork();
}

static uint32_t dropped_name;

/* `ring` and `upto`, the ring's serial behind the gap, show recovery which gaps of a ring are known already. */
static void put_gap(Out *out, uint32_t track, int64_t from, int64_t until, uint64_t missing, uint64_t ring, uint64_t upto) {
    if (!from || from > until) from = until;
    out->events[out->count++] = (Event){.ts = from,
                                        .dur = until - from,
                                        .self = (int64_t)upto,
                                        .id = missing,
                                        .parent = ring,
                                        .name = dropped_name,
                                        .track = track,
                                        .step = -1,
                                        .kind = KIND_GAP};
    out->gaps++;
}

/* Copies what was published when the drain began, up to the first event that began after `until`: a step mark of that time may
 * still be in another ring. Then drops what a writer that overwrites has overwritten since. A time after the drain is none of this
 * clock, and waits for nothing. */
bool drain_ring(Ring *r, Out *out) {
    Header *h = r->header;
    uint64_t tail = r->cursor, expected = atomic_load_explicit(&r->cursor_serial, memory_order_relaxed);
    uint64_t missing = 0;
    bool whole = true, later = false, overwrites = r->foreign || g_overflow == DROP_OLDEST;
    while (tail < r->goal) {
        if (out->count + 2 > out->room) {
            whole = false;
            break;
        }
        Event e;
        copy_slot(&e, &r->data[tail & r->mask], sizeof e, overwrites);
        atomic_thread_fence(memory_order_acquire);
        uint64_t reserve = atomic_load_explicit(&h->reserve, memory_order_relaxed);
        if (reserve > tail + r->mask + 1 && overwrites) {
            tail = reserve - (r->mask + 1);
            continue;
        }
        if (e.kind == KIND_MORE) {
            tail++;
            continue;
        }
        if ((later = e.ts > out->until && e.ts <= out->now)) break;
        uint64_t more = 0;
        if (e.args_len && !(e.flags & FLAG_ARG_INLINE)) {
            more = (e.args_len + PAYLOAD - 1) / PAYLOAD;
            if (out->args_len + e.args_len > out->args_room) {
                whole = false;
                break;
            }
            for (uint64_t i = 0; i < more; i++) {
                const More *m = (const More *)&r->data[(tail + 1 + i) & r->mask];
                uint64_t remaining = e.args_len - i * PAYLOAD;
                copy_slot(out->args + out->args_len + i * PAYLOAD, m->bytes, remaining < PAYLOAD ? remaining : PAYLOAD,
                          overwrites);
            }
            atomic_thread_fence(memory_order_acquire);
            reserve = atomic_load_explicit(&h->reserve, memory_order_relaxed);
            if (reserve > tail + r->mask + 1 && overwrites) {
                tail = reserve - (r->mask + 1);
                continue;
            }
            e.args_at = (uint32_t)out->args_len;
            out->args_len += e.args_len;
        }
        uint64_t serial = expected + (uint32_t)((uint32_t)e.step - (uint32_t)expected);
        if (serial != expected) {
            put_gap(out, h->track, r->last_ts, e.ts, serial - expected, r->index + 1, serial);
            missing += serial - expected;
        }
        expected = serial + 1;
        e.step = -1;
        if (e.kind == KIND_STEP) {
            e.step = (int32_t)e.dur;
            e.dur = 0;
        }
        r->last_ts = e.ts + e.dur;
        out->events[out->count++] = e;
        tail += 1 + more;
    }
    /* Dropped at the very end, with nothing written after them yet. */
    if (whole && !later && r->goal_produced > expected && (whole = out->count < out->room)) {
        put_gap(out, h->track, r->last_ts < out->until ? r->last_ts : out->until, out->now, r->goal_produced - expected,
                r->index + 1, r->goal_produced);
        missing += r->goal_produced - expected;
        expected = r->goal_produced;
    }
    r->copied = tail;
    r->copied_serial = expected;
    r->copied_lost = missing;
    return whole;
}

void ring_advance(Ring *r) {
    atomic_store_explicit(&r->cursor_serial, r->copied_serial, memory_order_release);
    uint64_t lost = atomic_load_explicit(&r->lost, memory_order_relaxed) + r->copied_lost;
    atomic_store_explicit(&r->lost, lost, memory_order_release);
    r->cursor = r->copied;
    atomic_store_explicit(&r->header->drained, r->copied, memory_order_relaxed);
}

void ring_mark(Ring *r) {
    r->marked = r->cursor;
    r->marked_serial = atomic_load_explicit(&r->cursor_serial, memory_order_relaxed);
}

void ring_release(Ring *r) {
    atomic_store_explicit(&r->header->serial, r->marked_serial, memory_order_release);
    atomic_store_explicit(&r->header->tail, r->marked, memory_order_release);
}

bool out_begin(Out *out, size_t slots, int64_t until) {
    dropped_name = strings_intern("dropped", 7);
    size_t args_room = slots * PAYLOAD + MAX_ARGS_BYTES;
    *out = (Out){.until = until,
                 .now = clock_now(),
                 .room = slots,
                 .args_room = args_room,
                 .events_object = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(slots * sizeof(Event))),
                 .args_object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)args_room)};
    if (out->events_object && out->args_object) {
        out->events = (Event *)PyByteArray_AS_STRING(out->events_object);
        out->args = PyBytes_AS_STRING(out->args_object);
        return true;
    }
    Py_CLEAR(out->events_object);
    Py_CLEAR(out->args_object);
    return false;
}

PyObject *out_end(Out *out, bool more) {
    if (PyByteArray_Resize(out->events_object, (Py_ssize_t)(out->count * sizeof(Event))) < 0 ||
        _PyBytes_Resize(&out->args_object, (Py_ssize_t)out->args_len) < 0) {
        Py_XDECREF(out->events_object);
        Py_XDECREF(out->args_object);
        return NULL;
    }
    return Py_BuildValue("(NNO)", out->events_object, out->args_object, more ? Py_True : Py_False);
}

bool drain_arguments(PyObject *args, size_t *limit, int64_t *until) {
    Py_ssize_t events;
    long long time;
    if (!PyArg_ParseTuple(args, "nL:drain", &events, &time)) return false;
    *limit = events < 1024 ? 1024 : (size_t)events;
    *until = time;
    return true;
}

PyObject *ring_py_drain(PyObject *self, PyObject *args) {
    size_t limit, slots = 0;
    int64_t until;
    if (!drain_arguments(args, &limit, &until)) return NULL;
    if (plan_at == planned) planned = rings_to_drain(plan), plan_at = 0;
    bool crowded = false;
    for (uint32_t i = plan_at; i < planned; i++) {
        uint64_t used = plan[i]->goal - plan[i]->cursor;
        crowded |= used > plan[i]->mask / 4;
        slots += (used > plan[i]->mask ? plan[i]->mask + 1 : used) + 4;
    }
    if (slots > limit) slots = limit;
    if (slots < 1024) slots = 1024;
    Out out;
    if (!out_begin(&out, slots, until)) return NULL;
    uint64_t reported = atomic_load(&ringless), without = rings_ringless();
    if (without > reported) {
        put_gap(&out, track_process(), drained_at, clock_now(), without - reported, 0, 0);
        atomic_store(&ringless, without);
    }
    drained_at = clock_now();
    main_thread_yields(crowded);
    PyThreadState *released = PyEval_SaveThread();
    uint32_t first = plan_at;
    while (plan_at < planned && drain_ring(plan[plan_at], &out)) plan_at++;
    for (uint32_t i = first; i < planned && i <= plan_at; i++) {
        ring_advance(plan[i]);
        if (!g_late_release) ring_mark(plan[i]), ring_release(plan[i]);
    }
    overflow_drained();
    if (plan_at == planned) rings_trim();
    acquire_gil(released);
    drained_bytes += (out.count - out.gaps) * sizeof(Event) + out.args_len;
    return out_end(&out, plan_at < planned);
}

/* Whether slots stay until the journals have what was copied from them. */
PyObject *ring_py_release_late(PyObject *self, PyObject *late) {
    int value = PyObject_IsTrue(late);
    if (value < 0) return NULL;
    g_late_release = value;
    if (!value) rings_each(ring_mark), rings_each(ring_release);
    overflow_drained();
    Py_RETURN_NONE;
}

PyObject *ring_py_mark(PyObject *self, PyObject *unused) {
    rings_each(ring_mark);
    Py_RETURN_NONE;
}

PyObject *ring_py_release(PyObject *self, PyObject *unused) {
    rings_each(ring_release);
    overflow_drained();
    PyThreadState *released = PyEval_SaveThread();
    rings_trim();
    acquire_gil(released);
    Py_RETURN_NONE;
}
