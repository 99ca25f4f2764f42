/* SIGTERM and SIGHUP: a note that one came, before the handler that Python has for it is called.
 *
 * Python calls handlers on the main thread, when that runs Python. So the runtime's loop reads the note: where the main thread is in
 * native code, or no handler could be set because another thread started the profiler, the loop has the profilers closed. A timer
 * sends the signal again after the deadline for closing, which ends the process: native code may let no thread run Python. */
#include "rings/ring.h"
#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static const int numbers[] = {SIGTERM, SIGHUP};
#define NUMBERS (sizeof numbers / sizeof *numbers)

static struct sigaction before[NUMBERS]; /* Python's own, which is called next; SIG_DFL where Python has no handler */
static atomic_int came;                  /* the signal that is to end the process, 0 = none */
static atomic_llong came_at, deadline;   /* ns; from then on */
static atomic_bool watching, has_timer;
static timer_t timer;
#define SECOND 1000000000ll
#define LATE SECOND /* until closing begins */

static size_t index_of(int number) { return number == SIGHUP; }

/* Has the signal sent again when the deadline is over; or not, without one. */
static void set_timer(long long ns) {
    struct itimerspec at = {.it_value = {.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND}};
    if (atomic_load(&has_timer)) timer_settime(timer, 0, &at, NULL);
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
    atomic_store(&came, 0);
    set_timer(0);
}

static void on_signal(int number, siginfo_t *info, void *context) {
    int error = errno, none = 0;
    const struct sigaction *next = &before[index_of(number)];
    if (!atomic_load(&watching)) die_of(number); /* another native handler, as faulthandler's, still calls this one */
    if (atomic_compare_exchange_strong(&came, &none, number))
        atomic_store(&came_at, clock_now()), set_timer(atomic_load(&deadline) + 1), ring_wake_consumer();
    else if (clock_now() - atomic_load(&came_at) > atomic_load(&deadline)) die_of(atomic_load(&came));
    if (next->sa_flags & SA_SIGINFO) next->sa_sigaction(number, info, context);
    else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) next->sa_handler(number);
    errno = error;
}

static void (*handler_of(int number))(int) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 ? now.sa_handler : SIG_ERR;
}

static bool is_ours(int number) { return handler_of(number) == (void (*)(int))(void *)on_signal; }

static void install(int number) {
    struct sigaction *next = &before[index_of(number)];
    if (is_ours(number) || sigaction(number, NULL, next) < 0) return;
    struct sigaction ours = {.sa_sigaction = on_signal, .sa_mask = next->sa_mask};
    bool quiet = next->sa_handler == SIG_DFL; /* system calls have no handler to make way for */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (quiet ? SA_RESTART : next->sa_flags & SA_RESTART);
    sigaction(number, &ours, NULL);
}

PyObject *signals_py_watch(PyObject *self, PyObject *args) {
    static void (*python)(int); /* the C handler that stands for all handlers in Python */
    int number;
    double seconds;
    PyObject *ours;
    if (!PyArg_ParseTuple(args, "iOd", &number, &ours, &seconds)) return NULL;
    atomic_store(&watching, true);
    if (!atomic_load(&came)) atomic_store(&deadline, (long long)((seconds < 1e6 ? seconds : 1e6) * SECOND) + LATE);
    struct sigevent again = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
    if (!atomic_load(&has_timer)) atomic_store(&has_timer, timer_create(CLOCK_MONOTONIC, &again, &timer) == 0);
    PyObject *module = PyImport_ImportModule("_signal");
    if (!module) return NULL;
    /* From here on Python sets no handler, for the GIL is held. */
    PyObject *handler = PyObject_CallMethod(module, "getsignal", "i", number);
    Py_DECREF(module);
    if (!handler) return NULL;
    bool handled = handler == ours;
    Py_DECREF(handler);
    void (*now)(int) = handler_of(number);
    if (handled && !python && now != SIG_DFL) python = now; /* the first time, Python has just set it */
    if (!atomic_load(&came) && (now == SIG_DFL || (handled && now == python))) install(number);
    Py_RETURN_NONE;
}

/* Whether the handlers are still those of `signals_py_watch`: so nobody has set one since, in Python or in C. */
PyObject *signals_py_watched(PyObject *self, PyObject *unused) {
    bool all = atomic_load(&watching);
    for (size_t i = 0; i < NUMBERS; i++) all = all && is_ours(numbers[i]);
    return PyBool_FromLong(all);
}

PyObject *signals_py_unwatch(PyObject *self, PyObject *unused) {
    atomic_store(&watching, false);
    if (atomic_exchange(&has_timer, false)) timer_delete(timer);
    for (size_t i = 0; i < NUMBERS; i++)
        if (is_ours(numbers[i])) signal(numbers[i], SIG_DFL);
    Py_RETURN_NONE;
}

PyObject *signals_py_came(PyObject *self, PyObject *unused) { return PyLong_FromLong(atomic_load(&came)); }

PyObject *signals_py_forget(PyObject *self, PyObject *unused) {
    atomic_store(&came, 0);
    set_timer(0);
    Py_RETURN_NONE;
}

PyObject *signals_py_allow(PyObject *self, PyObject *seconds) {
    double more = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred()) return NULL;
    long long until = atomic_fetch_add(&deadline, (long long)(more * SECOND)) + (long long)(more * SECOND);
    if (atomic_load(&came)) set_timer(atomic_load(&came_at) + until - clock_now() + 1);
    Py_RETURN_NONE;
}

PyObject *signals_py_die_of(PyObject *self, PyObject *arg) {
    int number = (int)PyLong_AsLong(arg);
    if (PyErr_Occurred()) return NULL;
    die_of(number);
    Py_RETURN_NONE;
}

/* A signal that comes before the child has let go of its parent's handlers would be lost: it waits until then. */
static sigset_t before_fork; /* mask of the thread that forks; forks come one after the other (ring.c) */

void signals_before_fork(void) {
    sigset_t these;
    sigemptyset(&these);
    for (size_t i = 0; i < NUMBERS; i++) sigaddset(&these, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &these, &before_fork);
}

void signals_after_fork_parent(void) { pthread_sigmask(SIG_SETMASK, &before_fork, NULL); }

/* The child is asked nothing that its parent was, and has nothing of its parent's to close. */
void signals_after_fork(void) {
    atomic_store(&watching, false);
    atomic_store(&has_timer, false); /* timers are not inherited */
    atomic_store(&came, 0);
    for (size_t i = 0; i < NUMBERS; i++)
        if (is_ours(numbers[i])) signal(numbers[i], SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before_fork, NULL);
}
