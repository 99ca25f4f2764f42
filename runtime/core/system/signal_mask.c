/* Signal masks of the library's threads.
 *
 * The system gives a signal for the process to any thread that does not block it. A program that blocks a signal in its
 * main thread and takes it with sigwait() must get it: so every thread of ours blocks all asynchronous signals from its
 * first instruction, and a thread that one of ours starts inherits that. Code of the program that runs on a thread of ours
 * has the program's mask meanwhile, and so have the programs that it starts. */
#include "core.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNALS 64

static _Thread_local int programs_code;  /* calls of the program's code that this thread is inside of */
static atomic_ullong seen; /* the main thread's mask when that called us last: bit N-1 for signal N */

/* All but those that a thread raises itself. Blocked, those of an instruction would end the process at once, and abort() would
 * not reach a handler of SIGABRT where the C library raises that before it unblocks it, as musl does. */
void mask_asynchronous(sigset_t *set) {
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigfillset(set);
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++) sigdelset(set, synchronous[i]);
}

static bool blocks_all(const sigset_t *mask) {
    sigset_t all;
    mask_asynchronous(&all);
    for (int n = 1; n <= SIGNALS; n++)
        if (n != SIGKILL && n != SIGSTOP && sigismember(&all, n) == 1 && sigismember(mask, n) != 1) return false;
    return true;
}

void mask_seen(void) {
    sigset_t now;
    unsigned long long bits = 0;
    if (syscall(SYS_gettid) != getpid() || pthread_sigmask(SIG_BLOCK, NULL, &now)) return;
    for (int n = 1; n <= SIGNALS; n++) bits |= sigismember(&now, n) == 1 ? 1ull << (n - 1) : 0;
    atomic_store(&seen, bits);
}

/* The signals that the main thread blocks now. 0 where /proc is not mounted. */
static unsigned long long main_thread_blocks(void) {
    char text[4096];
    read_small("/proc/self/status", text, sizeof text); /* that of the main thread, whichever reads it */
    const char *found = strstr(text, "\nSigBlk:");
    return found ? strtoull(found + sizeof "\nSigBlk:" - 1, NULL, 16) : 0;
}

/* While the main thread is inside of sigwait(), the system does not list what it waits for as blocked: so what it blocked
 * when it called us last counts as well. A main thread that blocks SIGSEGV is inside of a signal handler, as libuv's of
 * SIGCHLD, which blocks everything for as long as it runs: then only that counts. Needs the GIL, with which the main thread
 * blocks signals to start a thread. */
static void programs_mask(sigset_t *mask) {
    unsigned long long bits = main_thread_blocks();
    if (bits >> (SIGSEGV - 1) & 1) bits = 0;
    bits |= atomic_load(&seen);
    sigemptyset(mask);
    for (int n = 1; n <= SIGNALS; n++)
        if (bits >> (n - 1) & 1) sigaddset(mask, n); /* refuses those that the C library keeps for itself */
}

PyObject *mask_py_without_signals(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (n < 1) return PyErr_Format(PyExc_TypeError, "without_signals() takes a function");
    sigset_t all, before;
    mask_seen();
    mask_asynchronous(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(n - 1), keys);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

PyObject *mask_py_with_programs(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *keys) {
    if (n < 1) return PyErr_Format(PyExc_TypeError, "with_programs_mask() takes a function");
    sigset_t before, wanted;
    bool ours = pthread_sigmask(SIG_BLOCK, NULL, &before) == 0 && blocks_all(&before);
    pid_t process = getpid();
    if (ours) {
        programs_mask(&wanted);
        pthread_sigmask(SIG_SETMASK, &wanted, NULL);
        programs_code++;
    }
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(n - 1), keys);
    if (ours) {
        programs_code--;
        if (getpid() == process) pthread_sigmask(SIG_SETMASK, &before, NULL); /* in a forked child this is the main thread */
    }
    return result;
}

PyObject *mask_py_runs_programs_code(PyObject *self, PyObject *unused) { return PyBool_FromLong(programs_code > 0); }
