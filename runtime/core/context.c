/* Which stack a span goes to: that of the running asyncio task, or that of the thread.
 *
 * Every task runs in a context (contextvars) of its own. A context variable holds, per context, the scope that belongs
 * to it. A context that was copied from another inherits the other's scope: that tells the parent of a new task's
 * spans. The interpreter numbers the changes of a thread's context, so as long as a thread's number stays, its
 * stack does, at the cost of one comparison. */
#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *context;  /* weak reference to the context that this scope belongs to */
    Stack *stack;
    uint64_t owner;     /* of `stack`, when this scope was used last */
    uint64_t parent;    /* of the outermost spans of this context */
    PyObject *shared;   /* the scope of the same task whose stack this is */
    bool task;          /* the stack is a task's, and freed with the scope unless it is shared */
    uint32_t name;      /* of the task */
    int64_t number;     /* of the task */
    uint32_t forks;     /* of this process when the scope was made: in a child it means nothing */
} ContextScope;

static PyObject *variable, *task_lookup;
static uint32_t forks;

void context_after_fork(void) { forks++; }

static void scope_dealloc(ContextScope *self) {
    if (self->task && !self->shared && self->forks == forks) stack_free(self->stack);
    Py_XDECREF(self->shared);
    Py_XDECREF(self->context);
    PyObject_Free(self);
}

static PyTypeObject ScopeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "stepscope.runtime._core.ContextScope",
    .tp_basicsize = sizeof(ContextScope),
    .tp_dealloc = (destructor)scope_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static bool scope_of(const ContextScope *scope, const PyObject *context) {
    return scope && scope->forks == forks && ((PyWeakReference *)scope->context)->wr_object == context;
}

/* The running task's name and number, if a task is running. Of what the lookup raises, only that stays behind which
 * is no Exception: a signal handler raised it, and the program waits for it. */
static bool running_task(uint32_t *name, int64_t *number) {
    PyObject *found = task_lookup ? PyObject_CallNoArgs(task_lookup) : Py_NewRef(Py_None), *text;
    long long value = 0;
    bool is_task = found && found != Py_None && PyArg_ParseTuple(found, "UL", &text, &value) &&
                   (*name = strings_intern_object(text));
    *number = value;
    if (PyErr_Occurred()) {
        count_one(&g_counts.lookups_failed);
        if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    }
    Py_XDECREF(found);
    return is_task;
}

static uint64_t parent_in(const ContextScope *inherited) {
    if (!inherited || inherited->forks != forks) return 0;
    /* The stack of a thread that has ended may be another's by now. */
    return stack_owner(inherited->stack) == inherited->owner ? stack_top(inherited->stack) : inherited->parent;
}

static bool same_task(const ContextScope *scope, uint32_t name, int64_t number) {
    return scope && scope->forks == forks && scope->task && scope->name == name && scope->number == number;
}

static ContextScope *scope_new(Thread *t, PyObject *context, ContextScope *inherited, bool is_task, uint32_t name,
                               int64_t number) {
    ContextScope *scope = PyObject_New(ContextScope, &ScopeType);
    if (!scope) return NULL;
    *scope = (ContextScope){.ob_base = scope->ob_base, .stack = t->stack, .owner = t->serial, .parent = parent_in(inherited),
                            .name = name, .number = number, .forks = forks};
    if (is_task && same_task(inherited, name, number)) {
        /* A context run by hand inside the task that it was copied in. */
        scope->shared = Py_NewRef(inherited->shared ? inherited->shared : (PyObject *)inherited);
        scope->stack = inherited->stack;
        scope->task = true;
    } else if (is_task) {
        uint32_t track = track_new(TRACK_TASK, track_get(t->stack->track)->pid, number, name, t->stack->track);
        Stack *stack = stack_new(t, track);
        if (stack) scope->stack = stack, scope->task = true, stack->parent = scope->parent;
    }
    scope->context = PyWeakref_NewRef(context, NULL);
    PyObject *token = scope->context ? PyContextVar_Set(variable, (PyObject *)scope) : NULL;
    if (!token) Py_CLEAR(scope);
    Py_XDECREF(token);
    return scope;
}

/* The scope of the current context, made if there is none; a new reference. */
static ContextScope *scope_find(Thread *t, PyThreadState *state) {
    PyObject *value = NULL;
    uint32_t name = 0;
    int64_t number = 0;
    if (PyContextVar_Get(variable, NULL, &value) < 0 || scope_of((ContextScope *)value, state->context))
        return (ContextScope *)value;
    bool is_task = running_task(&name, &number);
    /* A signal handler that records may have run in between, and made the scope. */
    Py_CLEAR(value);
    if (PyErr_Occurred() || PyContextVar_Get(variable, NULL, &value) < 0 || scope_of((ContextScope *)value, state->context))
        return (ContextScope *)value;
    ContextScope *scope = scope_new(t, state->context, (ContextScope *)value, is_task, name, number);
    Py_XDECREF(value);
    return scope;
}

static Stack *look_up(Thread *t, PyThreadState *state) {
    if (!state->context) { /* made now, so that contexts copied from it inherit the scope */
        PyObject *copy = PyContext_CopyCurrent();
        Py_XDECREF(copy);
    }
    ContextScope *scope = state->context ? scope_find(t, state) : NULL;
    if (!scope) {
        /* But for signal handlers it fails for want of memory only; the thread's own stack is right enough then. */
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
        PyErr_Clear();
        count_one(&g_counts.lookups_failed);
        return t->stack;
    }
    if (scope->task) {
        /* A loop may go on in another thread. */
        atomic_store_explicit(&scope->stack->owner, t->serial, memory_order_relaxed);
    } else {
        scope->stack = t->stack;
        if (atomic_load_explicit(&t->stack->depth, memory_order_relaxed) == 0) t->stack->parent = scope->parent;
    }
    scope->owner = t->serial;
    t->context_stack = scope->stack;
    t->state_id = state->id;
    t->context_version = state->context_ver;
    Py_DECREF(scope); /* the context holds it */
    return t->context_stack;
}

Stack *stack_of_object(Thread *t) {
    PyThreadState *state = PyThreadState_Get();
    return t->state_id == state->id && t->context_version == state->context_ver ? t->context_stack : look_up(t, state);
}

Stack *stack_without_gil(Thread *t) {
    PyThreadState *state = PyGILState_GetThisThreadState();
    return state && t->state_id == state->id && t->context_version == state->context_ver ? t->context_stack : t->stack;
}

PyObject *context_py_set_task_lookup(PyObject *self, PyObject *lookup) {
    PyObject *old = task_lookup;
    task_lookup = Py_NewRef(lookup);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

int context_init(void) {
    variable = PyContextVar_New("stepscope_stack", NULL);
    return variable && PyType_Ready(&ScopeType) == 0 ? 0 : -1;
}
