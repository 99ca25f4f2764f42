/* The coroutine of a task, watched: whose step runs on this thread, and since when a task is suspended.
 *
 * A proxy takes the coroutine's place in its task and passes everything through. While a step of it runs, what this
 * thread records goes to the task's stack, in whatever context. When it gives way with spans open, a frame named
 * `suspended` is put on that stack, and taken off when it goes on: a nested span like others, so the self time of those
 * around it is what they ran, and whoever reads open spans sees it. */
#include "core.h"
#include <structmember.h>

static __thread Coroutine *running;
static uint32_t suspended_name, run_name;
static uint16_t suspended_category, run_category;
static bool record_tasks; /* each task is a span */

Coroutine *coroutine_running(void) { return running; }

static PyObject *coroutine_make(PyObject *inner) {
    if (Py_IS_TYPE(inner, &CoroutineType)) return Py_NewRef(inner);
    Coroutine *c = PyObject_GC_New(Coroutine, &CoroutineType);
    if (!c) return NULL;
    memset(&c->inner, 0, sizeof *c - offsetof(Coroutine, inner));
    c->inner = Py_NewRef(inner);
    PyObject_GC_Track(c);
    return (PyObject *)c;
}

static PyObject *coroutine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *inner;
    if (!PyArg_ParseTuple(args, "O:Coroutine", &inner)) return NULL;
    PyObject *made = coroutine_make(inner);
    Coroutine *c = (Coroutine *)made;
    if (made && inner != made && recording(RECORD_EVENTS)) c->parent = context_parent(), c->placed = true;
    return made;
}

static void suspend(Coroutine *c) {
    if (!c->scope || c->suspended.id || !recording(RECORD_EVENTS | RECORD_OPEN)) return;
    Thread *t = thread_current();
    Stack *stack = t ? scope_stack(c->scope, t) : NULL;
    uint8_t flags = recording(RECORD_EVENTS) ? FRAME_SUSPENDED : FRAME_SUSPENDED | FRAME_EARLY;
    if (stack && stack_in_use(stack)) span_open(t, stack, &c->suspended, suspended_name, suspended_category, flags);
}

static void go_on(Coroutine *c) {
    Thread *t = thread_current();
    if (t && scope_stack(c->scope, t) && !span_skip(t, &c->suspended))
        span_close(t, &c->suspended, clock_now(), 0, 0, 0, NULL, 0);
    c->suspended.id = 0;
}

static bool is_running(const Coroutine *c) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *answer = PyObject_GetAttrString(c->inner, "cr_running");
    bool yes = answer == Py_True;
    PyErr_Clear(); /* not every kind of coroutine says */
    Py_XDECREF(answer);
    PyErr_Restore(type, value, trace);
    return yes;
}

/* The task has ended. Spans that are left open keep their stack until nobody can ask for it any more. */
static void finish(Coroutine *c) {
    Thread *t = c->scope ? thread_current() : NULL;
    Stack *stack = t ? scope_stack(c->scope, t) : NULL;
    if (stack && !stack_in_use(stack)) scope_end(c->scope);
    Py_CLEAR(c->scope);
    Py_CLEAR(c->context);
}

/* The span of the whole task begins, with the first step that is recorded. False with what a handler of a signal raised. */
static bool __attribute__((noinline)) begin_run(Coroutine *c) {
    bool recorded = recording(RECORD_EVENTS);
    if (!recorded && !recording(RECORD_OPEN)) return true;
    Thread *t = thread_current_object();
    Stack *stack = t ? stack_of_object(t) : NULL;
    if (stack && c->scope && scope_stack(c->scope, t) == stack) {
        PyObject *name = PyObject_GetAttrString(c->inner, "__qualname__");
        uint32_t id = !name ? run_name : recorded ? strings_intern_object(name) : strings_intern_early(name);
        PyErr_Clear(); /* not every kind of coroutine has a name */
        if (id) span_open(t, stack, &c->run, id, run_category, recorded ? 0 : FRAME_EARLY);
        Py_XDECREF(name);
    }
    return !PyErr_Occurred();
}

static void end_run(Coroutine *c) {
    Thread *t = c->scope ? thread_current() : NULL;
    bool failed = PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_StopIteration);
    if (t && scope_stack(c->scope, t) && !span_skip(t, &c->run))
        span_close(t, &c->run, clock_now(), failed ? FLAG_ERROR : 0, 0, 0, NULL, 0);
    c->run.id = 0;
}

/* A step begins; returns the coroutine that `step_ended` makes the running one again. */
static Coroutine *step_begun(Coroutine *c) {
    Coroutine *outer = running;
    if (c->suspended.id) go_on(c);
    c->steps++;
    running = c;
    thread_forget_context(); /* tasks bring a context each, but who drives a coroutine by hand may not */
    return outer;
}

static void step_ended(Coroutine *c, Coroutine *outer, bool ended) {
    running = outer;
    thread_forget_context();
    if (--c->steps) return; /* refused, as it runs already */
    if (ended && c->run.id) end_run(c);
    if (ended) finish(c);
    else suspend(c);
}

/* Has the coroutine get what a handler of a signal has raised, as if that had come within it. */
static PySendResult pass_on(Coroutine *c, PyObject **result) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    *result = PyObject_CallMethod(c->inner, "throw", "O", value);
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    if (*result) return PYGEN_NEXT;
    if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return PYGEN_ERROR;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    *result = PyObject_GetAttrString(value, "value");
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    return *result ? PYGEN_RETURN : PYGEN_ERROR;
}

static PySendResult coroutine_am_send(PyObject *self, PyObject *value, PyObject **result) {
    Coroutine *c = (Coroutine *)Py_NewRef(self), *outer = step_begun(c);
    bool begun = !record_tasks || c->run.id || c->steps > 1 || begin_run(c);
    PySendResult sent = begun ? PyIter_Send(c->inner, value, result) : pass_on(c, result);
    step_ended(c, outer, sent != PYGEN_NEXT);
    Py_DECREF(self);
    return sent;
}

static PyObject *coroutine_send(PyObject *self, PyObject *value) {
    PyObject *result = NULL;
    if (coroutine_am_send(self, value, &result) != PYGEN_RETURN) return result;
    /* As an instance, so that a tuple that is returned is one value. */
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
    if (stop) PyErr_SetObject(PyExc_StopIteration, stop);
    Py_XDECREF(stop);
    Py_DECREF(result);
    return NULL;
}

static PyObject *coroutine_next(PyObject *self) { return coroutine_send(self, Py_None); }

static PyObject *call_inner(Coroutine *c, const char *name, PyObject *const *args, Py_ssize_t n, bool yields) {
    PyObject *method = PyObject_GetAttrString(c->inner, name);
    if (!method) return NULL;
    Py_INCREF(c);
    Coroutine *outer = step_begun(c);
    PyObject *result = PyObject_Vectorcall(method, args, (size_t)n, NULL);
    step_ended(c, outer, yields ? !result : result != NULL);
    Py_DECREF(method);
    Py_DECREF(c);
    return result;
}

static PyObject *coroutine_throw(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    return call_inner((Coroutine *)self, "throw", args, n, true);
}

static PyObject *coroutine_close(PyObject *self, PyObject *unused) {
    return call_inner((Coroutine *)self, "close", NULL, 0, false);
}

static PyObject *coroutine_await(PyObject *self) { return Py_NewRef(self); }

static PyObject *coroutine_paused(PyObject *self, PyObject *unused) {
    Coroutine *c = (Coroutine *)self;
    if (!c->steps && !is_running(c)) suspend(c);
    Py_RETURN_NONE;
}

static int coroutine_traverse(Coroutine *c, visitproc visit, void *arg) {
    Py_VISIT(c->inner);
    Py_VISIT(c->context);
    return 0;
}

static void coroutine_dealloc(Coroutine *c) {
    PyObject *type, *value, *trace;
    PyObject_GC_UnTrack(c);
    if (c->weak_references) PyObject_ClearWeakRefs((PyObject *)c);
    PyErr_Fetch(&type, &value, &trace);
    Coroutine *outer = step_begun(c);
    Py_CLEAR(c->inner); /* which may leave spans, as a step does */
    step_ended(c, outer, true);
    Py_CLEAR(c->context);
    PyErr_Restore(type, value, trace);
    PyObject_GC_Del(c);
}

static PyMethodDef methods[] = {
    {"send", coroutine_send, METH_O, NULL},
    {"throw", (PyCFunction)(void (*)(void))coroutine_throw, METH_FASTCALL, NULL},
    {"close", coroutine_close, METH_NOARGS, NULL},
    {"__await__", (PyCFunction)(void (*)(void))coroutine_await, METH_NOARGS, NULL},
    {"_paused", coroutine_paused, METH_NOARGS, NULL},
    {NULL},
};

/* Attributes that are no methods above are the coroutine's, its class included: to every caller, this is the coroutine. */
static PyObject *coroutine_getattr(PyObject *self, PyObject *name) {
    for (PyMethodDef *m = methods; m->ml_name; m++)
        if (PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, m->ml_name))
            return PyObject_GenericGetAttr(self, name);
    return PyObject_GetAttr(((Coroutine *)self)->inner, name);
}

static int coroutine_setattr(PyObject *self, PyObject *name, PyObject *value) {
    return PyObject_SetAttr(((Coroutine *)self)->inner, name, value);
}

static PyObject *coroutine_repr(PyObject *self) { return PyObject_Repr(((Coroutine *)self)->inner); }

static Py_hash_t coroutine_hash(PyObject *self) { return PyObject_Hash(((Coroutine *)self)->inner); }

static PyObject *coroutine_compare(PyObject *self, PyObject *other, int op) {
    if (Py_IS_TYPE(other, &CoroutineType)) other = ((Coroutine *)other)->inner;
    return PyObject_RichCompare(((Coroutine *)self)->inner, other, op);
}

static PyAsyncMethods async_methods = {.am_await = coroutine_await, .am_send = coroutine_am_send};

PyTypeObject CoroutineType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.Coroutine",
    .tp_doc = PyDoc_STR("Coroutine(coroutine, /)\n--\n\nTakes the place of a task's coroutine, so that its steps are known."),
    .tp_basicsize = sizeof(Coroutine),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = coroutine_new,
    .tp_traverse = (traverseproc)coroutine_traverse,
    .tp_dealloc = (destructor)coroutine_dealloc,
    .tp_weaklistoffset = offsetof(Coroutine, weak_references),
    .tp_methods = methods,
    .tp_getattro = coroutine_getattr,
    .tp_setattro = coroutine_setattr,
    .tp_repr = coroutine_repr,
    .tp_hash = coroutine_hash,
    .tp_richcompare = coroutine_compare,
    .tp_iternext = coroutine_next,
    .tp_as_async = &async_methods,
};

PyObject *coroutine_py_record_tasks(PyObject *self, PyObject *on) {
    record_tasks = PyObject_IsTrue(on) == 1;
    Py_RETURN_NONE;
}

int coroutine_init(void) {
    suspended_name = strings_intern("suspended", 9);
    suspended_category = strings_category("task", 4);
    run_name = strings_intern("task", 4);
    run_category = strings_category("task run", 8);
    return PyType_Ready(&CoroutineType);
}
