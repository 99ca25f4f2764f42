/* Signals that ask the process to stop. What comes while the main thread is inside of a change waits for its end; and a
 * watcher, a thread without Python, sees to it that one which ends the process is heard, wherever the main thread is. */
#include "core.h"
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int number;
    struct sigaction before; /* Python's own, which it is passed on to; SIG_DFL where Python has no handler for it */
    atomic_bool held;        /* it came inside of a change */
} Signal;

static Signal interrupt = {.number = SIGINT}; /* ours only inside of changes */
static Signal ending[] = {{.number = SIGTERM}, {.number = SIGHUP}};
#define ENDING (sizeof ending / sizeof *ending)
#define MS 1000000ll
#define KICKS (20 * MS)     /* between two signals to the main thread */
#define LATE (1000 * MS)    /* after which it is not waited for */
#define SPARE (20000 * MS)  /* for closing, beyond the profilers' deadline */

static atomic_int depth;    /* changes that the main thread is inside of */
static unsigned forks;
static atomic_int asked;    /* signal that is to end the process, 0 = none */
static atomic_bool alone;   /* it is not the main thread's: Python calls no handler of ours for it */
static atomic_bool begun;   /* somebody closes the profilers for it */
static atomic_bool watching, quitting;
static atomic_llong patience; /* ns that closing may take */
static sem_t wake;
static pthread_t watcher;
static _Atomic(pthread_t) main_thread;
static _Atomic(void *) python; /* its C handler, for all that have one in Python */
static PyObject *late;      /* called with the number, on a thread of its own */

static Signal *signal_of(int number) {
    for (size_t i = 0; i < ENDING; i++)
        if (ending[i].number == number) return &ending[i];
    return &interrupt;
}

/* Has the system do what it does without a handler. It returns if the system spares the process, as the first of a container. */
static void die_of(int number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    sigaction(number, &plain, NULL);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    kill(getpid(), number);
    atomic_store(&asked, 0);
}

static void pass_on(const Signal *s, siginfo_t *info, void *context) {
    if (s->before.sa_flags & SA_SIGINFO) s->before.sa_sigaction(s->number, info, context);
    else if (s->before.sa_handler == SIG_DFL) die_of(s->number);
    else if (s->before.sa_handler != SIG_IGN) s->before.sa_handler(s->number);
}

/* Has the watcher see to it. */
static void ask(int number, bool at_once) {
    int none = 0;
    if (!atomic_load(&watching)) return;
    if (at_once) atomic_store(&alone, true);
    if (atomic_compare_exchange_strong(&asked, &none, number)) sem_post(&wake);
}

static void on_signal(int number, siginfo_t *info, void *context) {
    int error = errno;
    Signal *s = signal_of(number);
    bool heard = s == &interrupt || s->before.sa_handler != SIG_DFL || !atomic_load(&watching),
         now = heard && !atomic_load(&depth);
    if (heard && !now) {
        atomic_store(&s->held, true);
        now = atomic_load(&depth) == 0 && atomic_exchange(&s->held, false); /* the change ended meanwhile, and did not see it */
    }
    if (now) pass_on(s, info, context);
    if (s != &interrupt) ask(number, !heard);
    errno = error;
}

static void *holder(const Signal *s) {
    struct sigaction now;
    return sigaction(s->number, NULL, &now) == 0 ? (void *)now.sa_handler : (void *)SIG_ERR;
}

static bool is_ours(const Signal *s) { return holder(s) == (void *)on_signal; }

static void take(Signal *s) {
    if (is_ours(s) || sigaction(s->number, NULL, &s->before) < 0) return;
    struct sigaction ours = {.sa_sigaction = on_signal, .sa_mask = s->before.sa_mask};
    bool quiet = s->before.sa_handler == SIG_DFL; /* system calls have nobody to make way for */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (quiet ? SA_RESTART : s->before.sa_flags & SA_RESTART);
    sigaction(s->number, &ours, NULL);
}

static void give_back(const Signal *s) {
    if (is_ours(s)) sigaction(s->number, &s->before, NULL);
}

static bool deliver(Signal *s) {
    if (!atomic_exchange(&s->held, false)) return false;
    if (holder(s) == (void *)SIG_DFL) die_of(s->number);
    else PyErr_SetInterruptEx(s->number);
    return true;
}

/* In C, so that no Python handler that raises comes between the count and the call, or the call and giving back. */
PyObject *signals_py_hold(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (n < 2) return PyErr_Format(PyExc_TypeError, "hold_signals() takes whether SIGINT is held, and a function");
    unsigned before = forks;
    main_thread = pthread_self();
    mask_seen();
    if (args[0] == Py_True) take(&interrupt);
    atomic_fetch_add(&depth, 1);
    /* What came before belongs before it. */
    PyObject *result = PyErr_CheckSignals() < 0 ? NULL : PyObject_Vectorcall(args[1], args + 2, (size_t)(n - 2), keys);
    if (before != forks || atomic_fetch_sub(&depth, 1) != 1) return result; /* a forked child is in no change */
    give_back(&interrupt);
    bool came = deliver(&interrupt);
    for (size_t i = 0; i < ENDING; i++) came |= deliver(&ending[i]);
    if (!came) return result;
    /* What the handlers raise comes in place of what the call returned or raised. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyErr_CheckSignals() == 0) return PyErr_Restore(type, value, trace), result;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_CLEAR(result);
    return NULL;
}

PyObject *signals_py_put_off(PyObject *self, PyObject *args) {
    int number, locked, handled;
    if (!PyArg_ParseTuple(args, "ipp", &number, &locked, &handled)) return NULL;
    bool off = atomic_load(&depth) || (locked && atomic_load(&watching));
    if (off && (handled || !atomic_load(&watching))) atomic_store(&signal_of(number)->held, true);
    ask(number, off && !handled); /* who has it in Python is not to be called again */
    return PyBool_FromLong(off);
}

PyObject *signals_py_held(PyObject *self, PyObject *unused) {
    bool held = atomic_load(&interrupt.held);
    for (size_t i = 0; i < ENDING; i++) held |= atomic_load(&ending[i].held);
    return PyBool_FromLong(held);
}

/* Closes the profilers from a thread that Python did not make. */
static void *tell(void *number) {
    if (!Py_IsInitialized()) return die_of((int)(intptr_t)number), NULL;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *done = PyObject_CallFunction(late, "i", (int)(intptr_t)number);
    if (!done) PyErr_WriteUnraisable(late);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return NULL;
}

/* The main thread may have gone to sleep just when the signal came, with its handler yet to be called: so it is woken until
 * that was. In native code nothing wakes it: then the profilers are closed elsewhere, and without them if that cannot be. */
static void attend(int number) {
    bool told = false;
    /* Counted, for while the whole process is stopped, nobody in it is late. */
    for (int64_t waited = KICKS; atomic_load(&asked) && !atomic_load(&quitting); waited += KICKS) {
        nanosleep(&(struct timespec){.tv_nsec = KICKS}, NULL);
        bool closing = atomic_load(&begun), now = atomic_load(&alone);
        if (waited > LATE + atomic_load(&patience) + (closing ? SPARE : 0)) die_of(number);
        if (closing) continue;
        void *held_by = holder(signal_of(number)); /* others pass it on to us, as faulthandler */
        if (!now && (held_by == python || held_by == (void *)SIG_DFL || held_by == (void *)SIG_IGN))
            atomic_store(&asked, 0); /* the program has taken it meanwhile */
        else if (!now && held_by == (void *)on_signal && !atomic_load(&depth)) pthread_kill(main_thread, number);
        pthread_t thread;
        if ((now || waited > LATE) && !told && pthread_create(&thread, NULL, tell, (void *)(intptr_t)number) == 0)
            told = true, pthread_detach(thread);
    }
    atomic_store(&alone, false);
}

static void *watch(void *unused) {
    while (!atomic_load(&quitting))
        if (sem_wait(&wake) == 0 && atomic_load(&asked)) attend(atomic_load(&asked));
    return NULL;
}

PyObject *signals_py_watch(PyObject *self, PyObject *args) {
    int number;
    double seconds;
    PyObject *ours, *function;
    if (!PyArg_ParseTuple(args, "iOdO", &number, &ours, &seconds, &function)) return NULL;
    PyObject *module = PyImport_ImportModule("_signal");
    if (!module) return NULL;
    Py_XSETREF(late, Py_NewRef(function));
    atomic_store(&patience, (long long)((seconds < 1e6 ? seconds : 1e6) * 1e9));
    if (!atomic_load(&watching)) {
        sigset_t all, usual;
        mask_asynchronous(&all);
        sem_init(&wake, 0, 0);
        pthread_sigmask(SIG_BLOCK, &all, &usual); /* the watcher's, and that of the thread that it starts */
        atomic_store(&watching, pthread_create(&watcher, NULL, watch, NULL) == 0);
        pthread_sigmask(SIG_SETMASK, &usual, NULL);
        if (watching) pthread_setname_np(watcher, "scope signals");
    }
    /* From here on Python sets no handler, for the GIL is held. */
    PyObject *handler = PyObject_CallMethod(module, "getsignal", "i", number);
    Py_DECREF(module);
    if (!handler) return NULL;
    bool handled = handler == ours;
    Py_DECREF(handler);
    void *now = holder(signal_of(number));
    if (handled && !python && now != (void *)SIG_DFL) python = now; /* the first time, Python has just set it */
    if (!atomic_load(&asked) && (now == (void *)SIG_DFL || (handled && now == python))) take(signal_of(number));
    Py_RETURN_NONE;
}

PyObject *signals_py_unwatch(PyObject *self, PyObject *unused) {
    if (atomic_load(&asked)) Py_RETURN_FALSE; /* the watcher is the last resort until the process has died */
    for (size_t i = 0; i < ENDING; i++) ending[i].before = (struct sigaction){.sa_handler = SIG_DFL}, give_back(&ending[i]);
    atomic_store(&begun, false);
    if (atomic_exchange(&watching, false)) {
        atomic_store(&quitting, true);
        sem_post(&wake);
        pthread_join(watcher, NULL);
        atomic_store(&quitting, false);
        int came = atomic_exchange(&asked, 0); /* since: it does what Python's handler says */
        if (came && atomic_exchange(&alone, false)) die_of(came);
    }
    Py_RETURN_TRUE;
}

PyObject *signals_py_begin_ending(PyObject *self, PyObject *unused) { return PyBool_FromLong(!atomic_exchange(&begun, true)); }

PyObject *signals_py_die_of(PyObject *self, PyObject *arg) {
    int number = (int)PyLong_AsLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (number || (number = atomic_load(&asked))) die_of(number);
    Py_RETURN_NONE;
}

/* A signal that comes before the child has let go of its parent's handlers would be lost: it waits until then. */
static sigset_t before_fork; /* mask of the thread that forks; forks come one after the other (ring.c) */

void signals_before_fork(void) {
    sigset_t these;
    sigemptyset(&these);
    for (size_t i = 0; i < ENDING; i++) sigaddset(&these, ending[i].number);
    pthread_sigmask(SIG_BLOCK, &these, &before_fork);
}

void signals_after_fork_parent(void) { pthread_sigmask(SIG_SETMASK, &before_fork, NULL); }

/* The child has no watcher, is inside of no change, and is asked nothing that its parent was. */
void signals_after_fork(void) {
    atomic_bool *no[] = {&alone, &begun, &watching, &quitting, &interrupt.held, &ending[0].held, &ending[1].held};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) atomic_store(no[i], false);
    atomic_store(&depth, 0);
    atomic_store(&asked, 0);
    forks++;
    give_back(&interrupt);
    /* Where the handler is ours, so is Python's, which has nothing to close here; Python sets the same in a moment. */
    for (size_t i = 0; i < ENDING; i++)
        if (is_ours(&ending[i])) signal(ending[i].number, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before_fork, NULL);
}
