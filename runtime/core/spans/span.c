/* User events: span objects, instants, counters, flows.
 *
 * A span object holds the arguments by reference and encodes them when the span ends. It may be entered again,
 * also while it is entered. Nothing here raises while recording: what cannot be kept is counted. */
#include "core.h"

#define INLINE_VALUES 4
#define FREE_SPANS 64

typedef struct Entered {
    struct Entered *outer;
    Open open;
} Entered;

/* `with` gets the bound methods `__enter__` and `__exit__` of each span. Before Python 3.14 it allocates both, which takes a third
 * of the time of a span. So they lie in the span itself, and each counts as one reference to the span while anyone has it. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
} BoundMethod;

typedef struct {
    PyObject_HEAD
    BoundMethod enter, exit;
    PyObject *name, *keys;     /* keys: the call's tuple of keyword names, or NULL */
    PyObject **values;         /* as many as keys; `few` or allocated */
    PyObject *few[INLINE_VALUES];
    uint32_t name_id;
    uint16_t category;
    bool entered, tracked;     /* tracked: by the garbage collector, as an argument may refer back to the span */
    Open open;                 /* of the latest entry; `id` 0: nothing was recorded then */
    Entered *outer;            /* entries of this object before that one, latest first */
} SpanObject;

static SpanObject *free_spans[FREE_SPANS];
static int free_count;
static void bound_methods_init(SpanObject *s);
static PyObject *decorator, *category_key;
static uint16_t default_category;
static uint32_t error_key, no_number_key;

static bool is_category(PyObject *key) {
    return key == category_key || (PyUnicode_GET_LENGTH(key) == 8 && PyUnicode_Compare(key, category_key) == 0);
}

static int check_name(PyObject *const *args, Py_ssize_t n, Py_ssize_t wanted, const char *usage) {
    if (n != wanted) return PyErr_Format(PyExc_TypeError, "%s, got %zd positional arguments", usage, n), -1;
    if (PyCallable_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "a name must be a str, got %.200s: %R; write @span(\"name\")",
                            Py_TYPE(args[0])->tp_name, args[0]),
               -1;
    if (!PyUnicode_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "a name must be a str, got %.200s: %R", Py_TYPE(args[0])->tp_name, args[0]), -1;
    return 0;
}

/* Leaves an exception only if a signal handler of the program has raised meanwhile. */
static void encode(ArgBuffer *buffer, PyObject *keys, PyObject *const *values) {
    for (Py_ssize_t i = 0, n = keys ? PyTuple_GET_SIZE(keys) : 0; i < n; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        uint32_t id = is_category(key) ? 0 : strings_intern_object(key);
        if (!id) PyErr_Clear(); /* the category, or out of memory */
        else if (arg_put_object(buffer, id, values[i]), PyErr_Occurred()) return;
    }
}

/* Category among keyword arguments, if given. */
static int find_category(PyObject *keys, PyObject *const *values, uint16_t *category) {
    for (Py_ssize_t i = 0, n = keys ? PyTuple_GET_SIZE(keys) : 0; i < n; i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (is_category(key)) return strings_category_object(values[i], category);
    }
    return 0;
}

static PyObject *span_make(PyObject *name, PyObject *keys, PyObject *const *values, uint16_t category) {
    SpanObject *s;
    if (free_count) {
        s = free_spans[--free_count];
        PyObject_Init((PyObject *)s, &SpanType);
    } else if ((s = PyObject_GC_New(SpanObject, &SpanType))) bound_methods_init(s);
    else return NULL;
    Py_ssize_t n = keys ? PyTuple_GET_SIZE(keys) : 0;
    s->name = Py_NewRef(name);
    s->keys = NULL;
    s->name_id = 0;
    s->category = category;
    s->entered = s->tracked = false;
    s->outer = NULL;
    s->values = s->few;
    if (n > INLINE_VALUES && !(s->values = PyMem_Malloc((size_t)n * sizeof *s->values))) {
        Py_DECREF(s);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        s->values[i] = Py_NewRef(values[i]);
        s->tracked |= PyObject_IS_GC(values[i]);
    }
    if (n) s->keys = Py_NewRef(keys);
    if (s->tracked) PyObject_GC_Track(s);
    return (PyObject *)s;
}

static PyObject *span_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *keys) {
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    uint16_t category = default_category;
    if (check_name(args, n, 1, "span(name, /, *, category=..., **arguments) takes one name") < 0) return NULL;
    if (keys && find_category(keys, args + n, &category) < 0) return NULL;
    return span_make(args[0], keys, args + n, category);
}

static void drop_entry(SpanObject *s) {
    Entered *outer = s->outer;
    s->entered = outer;
    if (!outer) return;
    s->open = outer->open;
    s->outer = outer->outer;
    PyMem_Free(outer);
}

static int span_traverse(SpanObject *s, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0, n = s->keys ? PyTuple_GET_SIZE(s->keys) : 0; i < n; i++) Py_VISIT(s->values[i]);
    return 0;
}

static int span_clear(SpanObject *s) {
    PyObject *keys = s->keys;
    s->keys = NULL; /* first, as what is released may look at the span */
    for (Py_ssize_t i = 0, n = keys ? PyTuple_GET_SIZE(keys) : 0; i < n; i++) Py_DECREF(s->values[i]);
    Py_XDECREF(keys);
    return 0;
}

static void span_dealloc(SpanObject *s) {
    if (s->tracked) PyObject_GC_UnTrack(s);
    span_clear(s);
    if (s->values != s->few) PyMem_Free(s->values);
    while (s->entered) {
        if (s->open.id) span_abandon(&s->open);
        drop_entry(s);
    }
    Py_XDECREF(s->name);
    if (free_count < FREE_SPANS) free_spans[free_count++] = s;
    else PyObject_GC_Del(s);
}

static PyObject *span_enter(SpanObject *s, PyObject *unused) {
    bool recorded = recording(RECORD_EVENTS), noted = recorded || recording(RECORD_OPEN);
    /* One that is entered already notes also what is not recorded, so that each exit finds its own entry. */
    if (!recorded) g_omitted_events += omitted(RECORD_EVENTS);
    if (!noted && !s->entered) return Py_NewRef(s);
    Thread *t = thread_current_object();
    if (!t) {
        if (recorded) ring_refuse();
        return Py_NewRef(s);
    }
    if (!s->name_id && !(s->name_id = recorded ? strings_intern_object(s->name) : strings_intern_early(s->name))) {
        if (PyErr_Occurred()) return NULL; /* out of memory */
        if (!s->entered) return Py_NewRef(s);
        noted = false;
    }
    Stack *stack = stack_of_object(t);
    if (!stack) return NULL;
    if (s->entered) {
        Entered *e = PyMem_Malloc(sizeof *e);
        if (!e) return PyErr_NoMemory();
        *e = (Entered){s->outer, s->open};
        s->outer = e;
    }
    s->entered = true;
    if (noted) span_open(t, stack, &s->open, s->name_id, s->category, recorded ? 0 : FRAME_EARLY);
    else s->open = (Open){.stack = stack};
    return Py_NewRef(s);
}

/* Of several entries, the latest of this thread or task is left; where it has none, the latest of all. */
static void choose(SpanObject *s, const Stack *stack) {
    for (Entered **at = &s->outer; s->open.stack != stack && *at; at = &(*at)->outer) {
        Entered *e = *at;
        if (e->open.stack != stack) continue;
        Open found = e->open;
        *at = e->outer;
        *e = (Entered){s->outer, s->open};
        s->outer = e;
        s->open = found;
        return;
    }
}

static void __attribute__((noinline)) close_with_arguments(Thread *t, SpanObject *s, const Open *open, PyObject *error) {
    ArgBuffer buffer;
    buffer.len = 0;
    int64_t end = clock_now(); /* before the arguments are encoded: that is not the span's work */
    encode(&buffer, s->keys, s->values);
    if (error) {
        const char *name = PyExceptionClass_Check(error) ? PyExceptionClass_Name(error) : Py_TYPE(error)->tp_name;
        arg_put_text(&buffer, error_key, name, strlen(name));
    }
    span_close(t, open, end, error ? FLAG_ERROR : 0, 0, 0, buffer.bytes, buffer.len);
}

static PyObject *span_exit(SpanObject *s, PyObject *const *args, Py_ssize_t n) {
    if (!s->entered) Py_RETURN_NONE;
    PyObject *error = n && args[0] != Py_None ? args[0] : NULL;
    Thread *t = thread_current_object();
    /* Which of several entries it is; also, a task that goes on in this thread brings its stack. */
    if (t && (s->outer || stack_owner(s->open.stack) != t->serial)) {
        const Stack *stack = stack_of_object(t);
        if (!stack) return NULL;
        choose(s, stack);
    }
    if (t && s->open.early && span_skip(t, &s->open)) {
        drop_entry(s);
        Py_RETURN_NONE;
    }
    /* Left before it is recorded: where recording waits for room, other threads may enter the span meanwhile. */
    Open open = s->open;
    drop_entry(s);
    if (!t && open.id) ring_refuse();
    if (t && open.id) {
        /* The usual cases: no argument, or one small number, which fits the record. */
        PyObject *key = s->keys && PyTuple_GET_SIZE(s->keys) == 1 ? PyTuple_GET_ITEM(s->keys, 0) : NULL;
        int overflow = 1;
        long long number = key && PyLong_CheckExact(s->values[0]) ? PyLong_AsLongLongAndOverflow(s->values[0], &overflow) : -1;
        if (!error && !s->keys) span_close(t, &open, clock_now(), 0, 0, 0, NULL, 0);
        else if (!error && !overflow && number >= 0 && number <= UINT32_MAX && !is_category(key))
            span_close(t, &open, clock_now(), 0, strings_intern_object(key), (uint32_t)number, NULL, 0);
        else close_with_arguments(t, s, &open, error);
    }
    if (PyErr_Occurred()) return NULL; /* a signal handler's: the program waits for it */
    Py_RETURN_NONE;
}

static PyObject *call_enter(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *keys) {
    if (PyVectorcall_NARGS(nargsf) || keys) return PyErr_Format(PyExc_TypeError, "span.__enter__() takes no arguments");
    return span_enter((SpanObject *)((char *)method - offsetof(SpanObject, enter)), NULL);
}

static PyObject *call_exit(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *keys) {
    if (keys) return PyErr_Format(PyExc_TypeError, "span.__exit__() takes no keyword arguments");
    return span_exit((SpanObject *)((char *)method - offsetof(SpanObject, exit)), args, PyVectorcall_NARGS(nargsf));
}

static SpanObject *span_of(BoundMethod *method) {
    size_t offset = method->call == call_enter ? offsetof(SpanObject, enter) : offsetof(SpanObject, exit);
    return (SpanObject *)((char *)method - offset);
}

static void bound_dealloc(BoundMethod *method) { Py_DECREF(span_of(method)); }

static PyObject *bound_repr(BoundMethod *method) {
    return PyUnicode_FromFormat("<method __%s__ of %R>", method->call == call_enter ? "enter" : "exit", span_of(method));
}

static PyTypeObject BoundMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.span_method",
    .tp_basicsize = sizeof(BoundMethod),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(BoundMethod, call),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)bound_dealloc,
    .tp_repr = (reprfunc)bound_repr,
};

static void bound_methods_init(SpanObject *s) {
    s->enter.call = call_enter;
    s->exit.call = call_exit;
    /* Not Py_SET_REFCNT: since Python 3.12 that leaves what looks immortal, as memory that was not set may. */
    ((PyObject *)&s->enter)->ob_refcnt = 0;
    ((PyObject *)&s->exit)->ob_refcnt = 0;
}

typedef struct {
    PyObject_HEAD
    PyObject *unbound; /* for those who ask the type, as ExitStack does */
    size_t offset; /* of the bound method in a span */
} MethodObject;

/* A span that may be part of a cycle gets methods that the garbage collector knows. */
static PyObject *method_get(MethodObject *method, PyObject *object, PyObject *type) {
    if (!object || !Py_IS_TYPE(object, &SpanType) || ((SpanObject *)object)->tracked)
        return Py_TYPE(method->unbound)->tp_descr_get(method->unbound, object, type);
    PyObject *bound = (PyObject *)((char *)object + method->offset);
    if (Py_REFCNT(bound)) return Py_NewRef(bound);
    Py_INCREF(object);
    return PyObject_Init(bound, &BoundMethodType);
}

static PyTypeObject MethodType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.method",
    .tp_basicsize = sizeof(MethodObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_descr_get = (descrgetfunc)method_get,
};

static int replace_method(const char *name, size_t offset) {
    PyObject *unbound = PyDict_GetItemString(SpanType.tp_dict, name);
    MethodObject *method = unbound ? PyObject_New(MethodObject, &MethodType) : NULL;
    if (!method) return -1;
    method->unbound = Py_NewRef(unbound);
    method->offset = offset;
    int failed = PyDict_SetItemString(SpanType.tp_dict, name, (PyObject *)method);
    Py_DECREF(method);
    return failed;
}

static PyObject *span_copy(SpanObject *s, PyObject *unused) { return span_make(s->name, s->keys, s->values, s->category); }

PyObject *span_py_copy(PyObject *self, PyObject *s) {
    if (!Py_IS_TYPE(s, &SpanType)) return PyErr_Format(PyExc_TypeError, "copy_span() takes a span, got %R", s);
    return span_copy((SpanObject *)s, NULL);
}

/* Models that have spans as attributes are copied and pickled: `functools.partial(span, name, **arguments)()` makes a new one. */
static PyObject *span_reduce(SpanObject *s, PyObject *unused) {
    PyObject *arguments = PyDict_New(), *functools = NULL, *make = NULL, *number = PyLong_FromLong(s->category),
             *category = NULL;
    if (!arguments || !number || !(category = strings_py_text(NULL, number))) goto done;
    if (PyDict_SetItem(arguments, category_key, category) < 0) goto done;
    for (Py_ssize_t i = 0, n = s->keys ? PyTuple_GET_SIZE(s->keys) : 0; i < n; i++)
        if (PyDict_SetItem(arguments, PyTuple_GET_ITEM(s->keys, i), s->values[i]) < 0) goto done;
    PyObject *name_only = Py_BuildValue("(OO)", &SpanType, s->name);
    if (!name_only) goto done;
    if ((functools = PyImport_ImportModule("functools"))) {
        PyObject *partial = PyObject_GetAttrString(functools, "partial");
        if (partial) make = PyObject_Call(partial, name_only, arguments);
        Py_XDECREF(partial);
    }
    Py_DECREF(name_only);
done:
    Py_XDECREF(arguments);
    Py_XDECREF(functools);
    Py_XDECREF(number);
    Py_XDECREF(category);
    return make ? Py_BuildValue("N()", make) : NULL;
}

static PyObject *span_call(SpanObject *s, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) != 1 || (kwargs && PyDict_GET_SIZE(kwargs)) || !decorator)
        return PyErr_Format(PyExc_TypeError, "a span is called with the one function that it decorates");
    return PyObject_CallFunctionObjArgs(decorator, s, PyTuple_GET_ITEM(args, 0), NULL);
}

/* Without these two Python would say only that a span is no asynchronous context manager. */
static PyObject *span_aenter(SpanObject *s, PyObject *unused) {
    return PyErr_Format(PyExc_TypeError, "a span is entered by `with`, in coroutines as well: write `with span(%R):`", s->name);
}

static PyObject *span_aexit(SpanObject *s, PyObject *args) { return span_aenter(s, args); }

static PyObject *span_name(SpanObject *s, void *unused) { return Py_NewRef(s->name); }

static PyObject *span_repr(SpanObject *s) { return PyUnicode_FromFormat("span(%R)", s->name); }

static PyMethodDef span_methods[] = {
    {"__enter__", (PyCFunction)span_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))span_exit, METH_FASTCALL, NULL},
    {"__aenter__", (PyCFunction)span_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)span_aexit, METH_VARARGS, NULL},
    {"__reduce__", (PyCFunction)span_reduce, METH_NOARGS, NULL},
    {"copy", (PyCFunction)span_copy, METH_NOARGS, "A new span of the same name, category and arguments."},
    {NULL},
};
static PyGetSetDef span_getset[] = {{"name", (getter)span_name, NULL, "The name as it was given.", NULL}, {NULL}};

PyTypeObject SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.span",
    .tp_doc = PyDoc_STR(
        "span(name, /, *, category='user_annotation', **arguments)\n--\n\n"
        "A stretch of work, as context manager or as decorator of a function, coroutine function or generator function.\n\n"
        "Args:\n    name: what the trace shows; 1024 bytes of UTF-8 are kept.\n    category: groups spans in tables and filters.\n"
        "    arguments: numbers, strings, booleans, None, and lists or dicts of them; paths, UUIDs, times, decimals, enums and\n        torch's types as their text; other objects are shown by type.\n\n"
        "Raises:\n    TypeError: if the name or category is no str. Entering and leaving never raise.\n\n"
        "Costs next to nothing while no profiler records. May be used from any thread or task."),
    .tp_basicsize = sizeof(SpanObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)span_traverse,
    .tp_clear = (inquiry)span_clear,
    .tp_dealloc = (destructor)span_dealloc,
    .tp_vectorcall = span_vectorcall,
    .tp_call = (ternaryfunc)span_call,
    .tp_methods = span_methods,
    .tp_getset = span_getset,
    .tp_repr = (reprfunc)span_repr,
};

/* Records one event that has no duration. `keys` may hold the category. `no_number`: what a counter was given instead. */
static PyObject *record(Event *event, PyObject *name, PyObject *keys, PyObject *const *values, PyObject *no_number) {
    if (find_category(keys, values, &event->category) < 0) return NULL;
    if (!recording(RECORD_EVENTS)) {
        g_omitted_events += omitted(RECORD_EVENTS);
        Py_RETURN_NONE;
    }
    Thread *t = thread_current_object();
    if (!t) {
        ring_refuse();
        Py_RETURN_NONE;
    }
    if (!(event->name = strings_intern_object(name))) return NULL;
    Stack *stack = stack_of_object(t);
    if (!stack) return NULL;
    event->track = stack->track;
    event->parent = stack_top(stack);
    event->ts = clock_now();
    ArgBuffer buffer;
    buffer.len = 0;
    if (keys) encode(&buffer, keys, values);
    if (no_number && !PyErr_Occurred()) arg_put_object(&buffer, no_number_key, no_number);
    ring_write(t, event, buffer.bytes, buffer.len);
    if (PyErr_Occurred()) return NULL; /* a signal handler's: the program waits for it */
    Py_RETURN_NONE;
}

PyObject *span_py_instant(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (check_name(args, n, 1, "instant(name, /, *, category=..., **arguments) takes one name") < 0) return NULL;
    Event event = {.kind = KIND_INSTANT, .category = default_category};
    return record(&event, args[0], keys, args + n, NULL);
}

PyObject *span_py_counter(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (check_name(args, n, 2, "counter(name, value, /, *, category=...) takes a name and a value") < 0) return NULL;
    Event event = {.kind = KIND_COUNTER, .category = default_category};
    if (recording(RECORD_EVENTS)) {
        event.value = PyFloat_AsDouble(args[1]);
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL; /* a signal handler's: the program waits for it */
            PyErr_Clear(); /* no number: training goes on, the trace shows NaN and the count says why */
            count_one(&g_counts.counter_values_that_are_no_number);
            event.value = NAN;
            event.flags = FLAG_NO_NUMBER;
        }
    }
    return record(&event, args[0], keys, args + n, event.flags ? args[1] : NULL);
}

PyObject *span_py_flow(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (check_name(args, n, 3, "flow(name, id, phase, /, *, category=...) takes a name, an id and a phase") < 0) return NULL;
    static const char *const phases[] = {"start", "step", "end"};
    uint8_t kind = 0;
    for (int i = 0; i < 3; i++)
        if (PyUnicode_Check(args[2]) && !PyUnicode_CompareWithASCIIString(args[2], phases[i]))
            kind = (uint8_t)(KIND_FLOW_START + i);
    if (!kind) return PyErr_Format(PyExc_ValueError, "phase must be 'start', 'step' or 'end', got %R", args[2]);
    if (!PyLong_Check(args[1])) return PyErr_Format(PyExc_TypeError, "id of a flow must be an int, got %R", args[1]);
    Event event = {.kind = kind, .category = default_category, .id = PyLong_AsUnsignedLongLongMask(args[1])};
    return PyErr_Occurred() ? NULL : record(&event, args[0], keys, args + n, NULL);
}

PyObject *span_py_set_decorator(PyObject *self, PyObject *function) {
    Py_XSETREF(decorator, Py_NewRef(function));
    Py_RETURN_NONE;
}

int span_init(void) {
    category_key = PyUnicode_InternFromString("category");
    default_category = strings_category("user_annotation", 15);
    error_key = strings_intern("error", 5);
    no_number_key = strings_intern("given", 5);
    if (!category_key || PyType_Ready(&SpanType) < 0 || PyType_Ready(&BoundMethodType) < 0 || PyType_Ready(&MethodType) < 0)
        return -1;
    if (PY_VERSION_HEX >= 0x030E0000) return 0; /* `with` allocates nothing there */
    if (replace_method("__enter__", offsetof(SpanObject, enter)) < 0) return -1;
    return replace_method("__exit__", offsetof(SpanObject, exit));
}
