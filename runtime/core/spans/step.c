/* The base type of StepController: counts steps and writes step marks, in C because every step of training pays for it. */
#include "system/readings.h"
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    long long step, next_change;
    long long deadline;         /* when, in ns, the running window ends if its steps take longer; 0: never */
    unsigned long stepper;      /* the thread that called step() last */
    unsigned int serial;        /* of the profiler in this process: the `id` of its step marks */
    unsigned int every, kinds;  /* of so many steps, if more than 1, one records events of these kinds, the others nothing */
    char live, asked;           /* asked: something waits to be done where step() is called */
    char in_change;             /* has added 1 to `changing` */
    char reads;                 /* whether step() reads what the system says of its thread */
    unsigned long marker;       /* the thread that made the last mark, */
    unsigned int track;         /* and the row of that */
    Readings readings;
} StepCounter;

static uint32_t step_name;
/* Changes of some profiler's action of which the consumer has no message yet: until it is, it does not decide
 * to which window the events belong that it has drained. */
static atomic_int changing;

PyObject *step_py_changing(PyObject *self, PyObject *by) {
    long n = PyLong_AsLong(by);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLong(atomic_fetch_add(&changing, (int)n) + n);
}

static void begin_change(StepCounter *self) {
    mask_seen();
    if (!self->in_change) self->in_change = 1, atomic_fetch_add(&changing, 1);
}

static void end_change(StepCounter *self) {
    if (self->in_change) self->in_change = 0, atomic_fetch_sub(&changing, 1);
}

static PyObject *step_begin_change(StepCounter *self, PyObject *unused) {
    begin_change(self);
    Py_RETURN_NONE;
}
static PyObject *step_end_change(StepCounter *self, PyObject *unused) {
    end_change(self);
    Py_RETURN_NONE;
}

void step_after_fork(void) { atomic_store(&changing, 0); /* those under way are the parent's */ }

/* May leave behind what a signal handler raised meanwhile; the mark is written in any case. */
static Event write_mark(StepCounter *self, int64_t now, Thread **thread) {
    Thread *t = *thread = thread_current_object();
    if (!t) return (Event){.ts = now};
    Stack *stack = stack_of_object(t);
    if (!stack) stack = t->stack;
    Event mark = {.ts = now,
                  .id = self->serial,
                  .track = stack->track,
                  .step = (int32_t)self->step,
                  .kind = KIND_STEP,
                  .name = step_name,
                  .parent = stack_top(stack)};
    ring_write(t, &mark, NULL, 0);
    self->marker = PyThread_get_thread_ident(), self->track = mark.track;
    return mark;
}

/* `before`: whether the step that ends was recorded. Where the next may not be, as a window ends, the reading belongs to it. */
static void read_signals(StepCounter *self, Thread *t, const Event *mark, bool before, bool change) {
    if (!self->reads || !t || !(before || recording(RECORD_EVENTS))) return;
    readings_write(&self->readings, t, mark, before && (change || self->every > 1) ? mark->ts - 1 : mark->ts);
}

static PyObject *step_step(StepCounter *self, PyObject *unused) {
    self->stepper = PyThread_get_thread_ident();
    if (!self->live) return PyObject_CallMethod((PyObject *)self, "_step_ignored", NULL);
    long long step = ++self->step;
    bool change = step >= self->next_change || self->asked || (self->deadline && clock_now() >= self->deadline);
    if (change) begin_change(self);
    int64_t now = clock_now();
    Thread *t;
    bool before = recording(RECORD_EVENTS);
    Event mark = write_mark(self, now, &t);
    if (self->every > 1) wants_now(self->serial, step % self->every ? 0 : (int)self->kinds);
    read_signals(self, t, &mark, before, change);
    if (!change) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *result = PyObject_CallMethod((PyObject *)self, "_transition", "LL", step, (long long)now);
    end_change(self); /* if it has not, as a signal handler raised */
    if (!type) return result;
    Py_XDECREF(result);
    PyErr_Restore(type, value, trace);
    return NULL;
}

static PyObject *step_mark(StepCounter *self, PyObject *at) {
    long long now = PyLong_AsLongLong(at);
    if (now == -1 && PyErr_Occurred()) return NULL;
    Thread *t;
    Event mark = write_mark(self, now ? now : clock_now(), &t);
    read_signals(self, t, &mark, false, false);
    return PyErr_Occurred() ? NULL : Py_BuildValue("(LIK)", (long long)mark.ts, mark.track, (unsigned long long)mark.parent);
}

static PyObject *step_close_readings(StepCounter *self, PyObject *unused) {
    readings_close(&self->readings);
    Py_RETURN_NONE;
}

static void step_dealloc(StepCounter *self) {
    readings_close(&self->readings);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"close_readings", (PyCFunction)step_close_readings, METH_NOARGS, NULL},
    {"_begin_change", (PyCFunction)step_begin_change, METH_NOARGS, NULL},
    {"_end_change", (PyCFunction)step_end_change, METH_NOARGS, NULL},
    {"_mark", (PyCFunction)step_mark, METH_O, NULL},
    {"step", (PyCFunction)step_step, METH_NOARGS,
     "step()\n--\n\nEnds the current step and begins the next. Never blocks and never raises; call it once per step,\n"
     "from any thread (from the thread of `start()` if a backend is bound to it)."},
    {NULL},
};

static PyMemberDef members[] = {
    {"number", T_LONGLONG, offsetof(StepCounter, step), 0, NULL},
    {"next_change", T_LONGLONG, offsetof(StepCounter, next_change), 0, NULL},
    {"_deadline", T_LONGLONG, offsetof(StepCounter, deadline), 0, NULL},
    {"serial", T_UINT, offsetof(StepCounter, serial), 0, NULL},
    {"_every", T_UINT, offsetof(StepCounter, every), 0, NULL},
    {"_kinds", T_UINT, offsetof(StepCounter, kinds), 0, NULL},
    {"stepper", T_ULONG, offsetof(StepCounter, stepper), 0, NULL},
    {"live", T_BOOL, offsetof(StepCounter, live), 0, NULL},
    {"_asked", T_BOOL, offsetof(StepCounter, asked), 0, NULL},
    {"reads", T_BOOL, offsetof(StepCounter, reads), 0, NULL},
    {"marker", T_ULONG, offsetof(StepCounter, marker), READONLY, NULL},
    {"track", T_UINT, offsetof(StepCounter, track), READONLY, NULL},
    {NULL},
};

PyTypeObject StepCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.StepCounter",
    .tp_basicsize = sizeof(StepCounter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)step_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};

int step_init(void) {
    step_name = strings_intern("ProfilerStep", 12);
    readings_init(), sampling_init();
    return 0;
}
