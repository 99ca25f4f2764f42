/* Which stack a span goes to: that of the running asyncio task, or that of the thread.
 *
 * Every task runs in a context (contextvars) of its own, so the identity of the thread's current context tells
 * tasks apart at the cost of one load. A context variable holds, per context, the stack that belongs to it. A
 * context that was copied from another inherits the other's value: that tells the parent of a new task's spans. */
#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *context;  /* weak reference to the context that this stack belongs to */
    Stack *stack;
    uint64_t parent;    /* of the outermost spans of this context */
    bool owned;         /* the stack is a task's, and freed with the context */
} ContextScope;

static PyObject *variable, *task_lookup;

static void scope_dealloc(ContextScope *self) {
    if (self->owned) stack_free(self->stack);
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
    return ((PyWeakReference *)scope->context)->wr_object == context;
}

/* The running task's name and number, if a task is running; never leaves an exception behind. */
static bool running_task(PyObject **name, long long *number) {
    PyObject *found = task_lookup ? PyObject_CallNoArgs(task_lookup) : Py_NewRef(Py_None);
    bool is_task = found && PyTuple_Check(found) && PyArg_ParseTuple(found, "UL", name, number);
    if (is_task) Py_INCREF(*name);
    if (PyErr_Occurred()) PyErr_Clear(), count_one(&g_counts.lookups_failed);
    Py_XDECREF(found);
    return is_task;
}

static ContextScope *scope_new(Thread *t, PyObject *context, const ContextScope *inherited) {
    ContextScope *scope = PyObject_New(ContextScope, &ScopeType);
    if (!scope) return NULL;
    scope->stack = t->stack, scope->parent = 0, scope->owned = false;
    scope->context = PyWeakref_NewRef(context, NULL);
    Open top;
    if (inherited) scope->parent = stack_top(inherited->stack, 0, &top) ? top.id : inherited->parent;
    PyObject *name = NULL;
    long long number;
    if (scope->context && running_task(&name, &number)) {
        uint32_t track = track_new(TRACK_TASK, track_get(t->stack->track)->pid, number, strings_intern_object(name), t->stack->track);
        Stack *stack = stack_new(t, track);
        if (stack) scope->stack = stack, scope->owned = true, stack->parent = scope->parent;
    }
    Py_XDECREF(name);
    PyObject *token = scope->context ? PyContextVar_Set(variable, (PyObject *)scope) : NULL;
    if (!token) Py_CLEAR(scope);
    Py_XDECREF(token);
    return scope;
}

Stack *stack_of_object(Thread *t) {
    PyObject *context = PyThreadState_Get()->context;
    if (!context) {
        if (t->scope) {
            Py_CLEAR(t->scope);
            if (atomic_load_explicit(&t->stack->depth, memory_order_relaxed) == 0) t->stack->parent = 0;
        }
        return t->stack;
    }
    ContextScope *scope = (ContextScope *)t->scope;
    if (scope && scope_of(scope, context)) return scope->stack;
    PyObject *value = NULL;
    /* The variable's calls do not fail but for memory, and then the thread's own stack is right enough. */
    if (PyContextVar_Get(variable, NULL, &value) < 0) return PyErr_Clear(), t->stack;
    scope = (ContextScope *)value;
    if (!scope || !scope_of(scope, context)) {
        scope = scope_new(t, context, (ContextScope *)value);
        Py_XDECREF(value);
        if (!scope) return PyErr_Clear(), count_one(&g_counts.lookups_failed), t->stack;
    }
    /* A context that ran on another thread before and is no task's: its outermost spans go to this thread. */
    Stack *stack = scope->owned ? scope->stack : (scope->stack = t->stack);
    if (!scope->owned && atomic_load_explicit(&stack->depth, memory_order_relaxed) == 0) stack->parent = scope->parent;
    PyObject *old = t->scope;
    t->scope = (PyObject *)scope;
    Py_XDECREF(old);
    return stack;
}

Stack *stack_without_gil(Thread *t) {
    PyThreadState *state = PyGILState_GetThisThreadState();
    ContextScope *scope = (ContextScope *)t->scope;
    return state && state->context && scope && scope_of(scope, state->context) ? scope->stack : t->stack;
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
