/* The events that each profiler wants: their union is recorded. Changed with the GIL held, so without a lock, which
 * a signal handler could find taken by the code that it interrupted. */
#include "core.h"

typedef struct {
    uint64_t who;
    int asked, now;
} Want;

static Want *wants;
static size_t count, room;
uint64_t g_omitted_events;
atomic_int g_omitted;

static Want *find(uint64_t who) {
    for (size_t i = 0; i < count; i++)
        if (wants[i].who == who) return &wants[i];
    return NULL;
}

static void update(void) {
    int asked = 0, now = 0;
    for (size_t i = 0; i < count; i++) asked |= wants[i].asked, now |= wants[i].now;
    atomic_store_explicit(&g_omitted, asked & ~now, memory_order_relaxed);
    control_record(now);
}

void wants_now(uint64_t who, int now) {
    Want *want = find(who);
    if (!want || want->now == now) return;
    want->now = now;
    update();
}

void wants_after_fork(void) {
    count = 0;
    update();
}

PyObject *wants_py_want(PyObject *self, PyObject *args) {
    unsigned long long who;
    int asked, now;
    if (!PyArg_ParseTuple(args, "Kii", &who, &asked, &now)) return NULL;
    Want *want = find(who);
    if (!want && asked) {
        if (count == room) {
            Want *more = PyMem_Realloc(wants, (room + 16) * sizeof *more);
            if (!more) return PyErr_NoMemory();
            wants = more;
            room += 16;
        }
        want = &wants[count++];
        want->who = who;
    }
    if (want) want->asked = asked, want->now = asked & now;
    if (want && !asked) *want = wants[--count];
    update();
    Py_RETURN_NONE;
}

PyObject *wants_py_omitted(PyObject *self, PyObject *unused) {
    return Py_BuildValue("KK", (unsigned long long)g_omitted_events, (unsigned long long)itt_omitted());
}
