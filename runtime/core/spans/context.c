/* Which stack a span goes to: that of the running task, or that of the thread.
 *
 * The coroutines of tasks are watched where that can be done (coroutine.c): then it is known whose step runs. Other
 * tasks are distinguished by their context (contextvars). A context variable holds, per context, the scope that belongs to
 * it; a context that was copied from another inherits the other's: that shows the parent of a thread's or callback's
 * spans. The interpreter numbers the changes of a thread's context, so as long as a thread's number stays, its stack
 * does, at the cost of one comparison. */
#include "core.h"

struct ContextScope {
    PyObject_HEAD
    PyObject *context;  /* weak reference to the context that this scope belongs to; NULL: it is a coroutine's */
    Stack *stack;       /* NULL: of a task that has ended */
    uint64_t owner;     /* of `stack`, when this scope was used last */
    Parent parent;      /* of the outermost spans of this context */
    PyObject *shared;   /* the scope of the same task whose stack this is */
    bool task;          /* the stack is a task's, and freed with the scope unless it is shared */
    int64_t number;     /* of the task */
    uint32_t forks;     /* of this process when the scope was made: in a child it means nothing */
};

typedef struct {
    bool is_task;
    uint32_t name;
    int64_t number;
    Coroutine *coroutine; /* owned; NULL: it is not watched */
} Task;

static PyObject *variable, *task_lookup;
static uint32_t forks;

void context_after_fork(void) { forks++; }

void scope_end(ContextScope *self) {
    Stack *stack = self->stack;
    if (!self->task || self->shared || !stack || self->forks != forks) return;
    self->stack = NULL;
    track_release(stack->track);
    stack_free(stack);
}

static void scope_dealloc(ContextScope *self) {
    scope_end(self);
    Py_XDECREF(self->shared);
    Py_XDECREF(self->context);
    PyObject_Free(self);
}

static PyTypeObject ScopeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.runtime._core.ContextScope",
    .tp_basicsize = sizeof(ContextScope),
    .tp_dealloc = (destructor)scope_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static void use(ContextScope *scope, Thread *t) {
    /* A loop may go on in another thread. */
    if (scope->task) atomic_store_explicit(&scope->stack->owner, t->serial, memory_order_relaxed);
    else scope->stack = t->stack;
    scope->owner = t->serial;
}

Stack *scope_stack(ContextScope *scope, Thread *t) {
    if (!scope->stack || scope->forks != forks) return NULL;
    use(scope, t);
    return scope->stack;
}

/* Whether it is the one of this context, or of the coroutine that runs. */
static bool scope_fits(const ContextScope *scope, const Coroutine *running, const PyObject *context) {
    if (!scope || scope->forks != forks) return false;
    if (running) return scope == running->scope;
    return scope->context && ((PyWeakReference *)scope->context)->wr_object == context;
}

/* Forgets what a lookup raised if it lacked memory or stack. Otherwise a signal handler did, and the program waits for it. */
static bool lacked(void) {
    if (!PyErr_ExceptionMatches(PyExc_MemoryError) && !PyErr_ExceptionMatches(PyExc_RecursionError)) return false;
    PyErr_Clear();
    count_one(&g_counts.lookups_failed);
    return true;
}

/* The task that Python says is running, if there is one. Errors of the program's tasks are results of the lookup. */
static Task running_task(void) {
    PyObject *found = task_lookup ? PyObject_CallNoArgs(task_lookup) : Py_NewRef(Py_None), *text, *coroutine;
    long long number = 0;
    Task task = {0};
    if (!found) return lacked(), task;
    task.is_task = found != Py_None && PyArg_ParseTuple(found, "ULO", &text, &number, &coroutine) &&
                   (task.name = strings_intern_object(text));
    task.number = number;
    if (task.is_task && Py_IS_TYPE(coroutine, &CoroutineType)) task.coroutine = (Coroutine *)Py_NewRef(coroutine);
    if (PyErr_Occurred()) PyErr_Clear(), count_one(&g_counts.lookups_failed);
    Py_DECREF(found);
    return task;
}

static Parent parent_in(const ContextScope *inherited) {
    if (!inherited || inherited->forks != forks) return (Parent){0};
    /* The stack of a thread that has ended may be another's by now. */
    bool same = inherited->stack && stack_owner(inherited->stack) == inherited->owner;
    /* On what the outermost spans of a thread hang is for each context to say. */
    if (same && !inherited->task) same = stack_has_parent(inherited->stack);
    return same ? stack_parent(inherited->stack) : inherited->parent;
}

/* Of a task's outermost spans. */
static Parent parent_of_task(const ContextScope *inherited, const Thread *t) {
    bool of_thread = !inherited || (!inherited->task && inherited->owner == t->serial);
    return t->under && of_thread && !stack_has_parent(t->stack) ? (Parent){t->under, 0} : parent_in(inherited);
}

Parent context_parent(void) {
    PyThreadState *state = PyThreadState_Get();
    const Coroutine *c = coroutine_running();
    Thread *t = thread_current_object();
    PyObject *value = NULL;
    if (c && c->scope && c->scope->stack && c->scope->forks == forks) return stack_parent(c->scope->stack);
    if (c && c->placed) return c->parent;
    if (t && t->state_id == state->id && t->context_version == state->context_ver) return stack_parent(t->context_stack);
    if (PyContextVar_Get(variable, NULL, &value) < 0) PyErr_Clear(); /* out of memory */
    Parent parent = t ? parent_of_task((ContextScope *)value, t) : (Parent){0};
    Py_XDECREF(value);
    return parent;
}

static ContextScope *scope_new(Thread *t, ContextScope *inherited, Parent parent, const Task *task) {
    ContextScope *scope = PyObject_New(ContextScope, &ScopeType);
    if (!scope) return NULL;
    *scope = (ContextScope){.ob_base = scope->ob_base,
                            .stack = t->stack,
                            .owner = t->serial,
                            .parent = parent,
                            .number = task->number,
                            .forks = forks};
    if (task->is_task && inherited && inherited->forks == forks && inherited->task && inherited->context && inherited->stack &&
        inherited->number == task->number) {
        /* A context run by hand inside the task that it was copied in. */
        scope->shared = Py_NewRef(inherited->shared ? inherited->shared : (PyObject *)inherited);
        scope->stack = inherited->stack;
        scope->task = true;
    } else if (task->is_task) {
        uint32_t track = track_lease(TRACK_TASK, task->name, t->stack->track, scope->parent.track);
        Stack *stack = stack_new(t, track);
        if (stack) scope->stack = stack, scope->task = true, stack_hang(stack, scope->parent);
        else track_release(track);
    }
    return scope;
}

/* The scope of a watched coroutine, made if there is none; a new reference. */
static ContextScope *scope_of_coroutine(Thread *t, Coroutine *c, ContextScope *inherited, const Task *found) {
    if (c->scope && c->scope->forks == forks) return (ContextScope *)Py_NewRef(c->scope);
    Task task = *found;
    if (task.coroutine != c) { /* such as one that is being destroyed while another task runs */
        PyObject *name = PyObject_GetAttrString(c->inner, "__qualname__");
        if (!name || !(task.name = strings_intern_object(name))) PyErr_Clear(), task.name = strings_intern("task", 4);
        Py_XDECREF(name);
    }
    task.is_task = true;
    task.number = 0; /* no context shares it */
    ContextScope *scope = scope_new(t, inherited, c->placed ? c->parent : parent_of_task(inherited, t), &task);
    Py_XSETREF(c->scope, (ContextScope *)Py_XNewRef(scope));
    Py_CLEAR(c->context);
    return scope;
}

/* The scope of what runs now, made if there is none; a new reference. */
static ContextScope *scope_find(Thread *t, PyThreadState *state) {
    Coroutine *running = coroutine_running();
    PyObject *value = NULL;
    Task task = {0};
    if (PyContextVar_Get(variable, NULL, &value) < 0 || scope_fits((ContextScope *)value, running, state->context))
        return (ContextScope *)value;
    if (!running || !running->scope || running->scope->forks != forks) {
        task = running_task();
        /* A signal handler that records may have run in between, and made the scope. */
        Py_CLEAR(value);
        if (PyErr_Occurred() || PyContextVar_Get(variable, NULL, &value) < 0 ||
            scope_fits((ContextScope *)value, running, state->context)) {
            Py_XDECREF(task.coroutine);
            return (ContextScope *)value;
        }
    }
    /* A task that is watched from its next step on has its scope already. */
    Coroutine *c = running ? running : task.coroutine;
    ContextScope *inherited = (ContextScope *)value;
    /* In one thread, spans nest on its stack; what was open when a context was copied may have ended. */
    bool of_thread = inherited && !inherited->task && inherited->owner == t->serial;
    Parent parent = task.is_task ? parent_of_task(inherited, t) : of_thread ? inherited->parent : parent_in(inherited);
    ContextScope *scope = c ? scope_of_coroutine(t, c, inherited, &task) : scope_new(t, inherited, parent, &task);
    if (scope && !c && !(scope->context = PyWeakref_NewRef(state->context, NULL))) Py_CLEAR(scope);
    PyObject *token = scope && scope != inherited ? PyContextVar_Set(variable, (PyObject *)scope) : NULL;
    if (!token && scope && scope != inherited) Py_CLEAR(scope);
    Py_XDECREF(token);
    Py_XDECREF(value);
    Py_XDECREF(task.coroutine);
    return scope;
}

static Stack *remember(Thread *t, const PyThreadState *state, Stack *stack) {
    t->state_id = state->id;
    t->context_version = state->context_ver;
    return t->context_stack = stack;
}

/* The stack of the task whose step runs, if it has recorded in this context before: what tasks that take turns ask. */
static Stack *stack_of_running(Thread *t, const PyThreadState *state) {
    const Coroutine *c = coroutine_running();
    if (!c || !c->scope || !c->scope->task || !state->context || c->context != state->context) return NULL;
    return scope_stack(c->scope, t);
}

static Stack *look_up(Thread *t, PyThreadState *state) {
    Stack *stack = stack_of_running(t, state);
    if (stack) return remember(t, state, stack);
    if (!state->context) { /* made now, so that contexts copied from it inherit the scope */
        PyObject *copy = PyContext_CopyCurrent();
        Py_XDECREF(copy);
    }
    ContextScope *scope = state->context ? scope_find(t, state) : NULL;
    if (!scope) {
        /* The thread's own stack is right enough then. */
        return lacked() ? t->stack : NULL;
    }
    use(scope, t);
    Coroutine *running = coroutine_running();
    if (running && running->scope == scope && !running->context) running->context = Py_NewRef(state->context);
    if (!scope->task && !stack_in_use(t->stack)) {
        /* A parent on the thread's own row has ended, as nothing is open there. */
        Parent on = scope->parent.track == t->stack->track ? (Parent){0} : scope->parent;
        stack_hang(t->stack, t->under ? (Parent){t->under, 0} : on);
    }
    stack = scope->stack;
    Py_DECREF(scope); /* the context holds it */
    return remember(t, state, stack);
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
    Py_XSETREF(task_lookup, Py_NewRef(lookup));
    Py_RETURN_NONE;
}

PyObject *context_py_current_span(PyObject *self, PyObject *unused) {
    return PyLong_FromUnsignedLongLong(recording(RECORD_EVENTS) ? context_parent().span : 0);
}

static uint64_t go_under(Thread *t, uint64_t span) {
    uint64_t outer = t->under;
    t->under = span;
    t->state_id = 0;
    if (!stack_in_use(t->stack)) stack_hang(t->stack, (Parent){span, 0});
    return outer;
}

PyObject *context_py_call_under(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (n < 2) return PyErr_Format(PyExc_TypeError, "call_under(span, function, *args, **kwargs)");
    uint64_t parent = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred()) return NULL;
    Thread *t = recording(RECORD_EVENTS) ? thread_current_object() : NULL;
    if (!t) return PyObject_Vectorcall(args[1], args + 2, (size_t)(n - 2), keys);
    uint64_t outer = go_under(t, parent);
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(n - 2), keys);
    go_under(t, outer);
    return result;
}

int context_init(void) {
    variable = PyContextVar_New("stepscope_stack", NULL);
    return variable && PyType_Ready(&ScopeType) == 0 ? 0 : -1;
}
