/* Threads that record: each is found by a thread-local, made when it records for the first time, and lets go of its rings
 * and stack when it ends. */
#include "rings/ring.h"
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_NAMED_THREADS (1u << 16) /* threads that get a track of their own name and number; later ones share some */

static pthread_key_t thread_key;
static __thread Thread *current __attribute__((tls_model("initial-exec")));
static __thread bool ended __attribute__((tls_model("initial-exec")));

static void thread_end(void *value) {
    Thread *t = value;
    current = NULL;
    ended = true;
    itt_thread_end(t);
    if (!rings_open()) return; /* the memory of a forked child's parent: not ours to change */
    track_release(t->stack->track);
    stack_free(t->stack);
    ring_return(t->ring, t->marks);
    free(t);
}

bool thread_init(void) { return pthread_key_create(&thread_key, thread_end) == 0; }

void thread_after_fork(void) {
    free(current);
    current = NULL;
    ended = false;
    pthread_setspecific(thread_key, NULL);
}

static Thread *thread_start(const char *name, size_t len) {
    if (!rings_open() || ended) return NULL;
    Thread *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->serial = atomic_fetch_add(&g_control.threads, 1) + 1;
    t->next_id = (t->serial << 36) + 1;
    int64_t tid = syscall(SYS_gettid);
    uint32_t track = t->serial <= MAX_NAMED_THREADS
                         ? track_new(TRACK_THREAD, getpid(), tid, strings_intern(name, len), track_process())
                         : track_lease(TRACK_THREAD, strings_intern("thread", 6), track_process(), 0);
    Ring *r = ring_lend(track, tid);
    Stack *s = r ? stack_new(t, track) : NULL;
    if (!s || pthread_setspecific(thread_key, t) != 0) {
        count_one(&g_counts.rings_failed);
        if (s) stack_free(s);
        track_release(track);
        ring_return(r, NULL);
        free(t);
        ended = rings_open(); /* not tried again for each event of this thread */
        return NULL;
    }
    t->ring = r;
    t->stack = s;
    return current = t;
}

void thread_forget_context(void) {
    if (current) current->state_id = 0;
}

Thread *thread_current(void) {
    if (current) return current;
    char name[64] = "thread";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (syscall(SYS_gettid) == getpid()) strcpy(name, "MainThread"); /* as Python names it; the system, as the program */
    return thread_start(name, strlen(name));
}

Thread *thread_current_object(void) {
    if (current) return current;
    if (!rings_open() || ended) return NULL;
    if (control_joined()) track_name_process();
    /* threading.current_thread() would register foreign threads for ever, enumerate() takes a lock that a signal
     * handler may interrupt, and the property `name` is Python code, in which signal handlers run. */
    PyObject *module_name = PyUnicode_FromString("threading");
    PyObject *threading = module_name ? PyImport_GetModule(module_name) : NULL;
    PyObject *active = threading ? PyObject_GetAttrString(threading, "_active") : NULL;
    PyObject *ident = active ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    PyObject *thread = ident && PyDict_Check(active) ? Py_XNewRef(PyDict_GetItemWithError(active, ident)) : NULL;
    PyObject *name = thread ? PyObject_GetAttrString(thread, "_name") : NULL, *encoded = NULL;
    Py_ssize_t len = 0;
    const char *text = name && PyUnicode_Check(name) ? utf8_object(name, &len, &encoded) : NULL;
    if (PyErr_Occurred()) PyErr_Clear(), count_one(&g_counts.lookups_failed);
    Thread *t = text && !current ? thread_start(text, (size_t)len) : thread_current();
    Py_XDECREF(encoded);
    Py_XDECREF(name);
    Py_XDECREF(thread);
    Py_XDECREF(ident);
    Py_XDECREF(active);
    Py_XDECREF(threading);
    Py_XDECREF(module_name);
    return t;
}
