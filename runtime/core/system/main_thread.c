/* Asks Python's main thread to call a function soon, from a thread without the interpreter's lock.
 *
 * Up to Python 3.12, Py_AddPendingCall interrupts the evaluation loop only if the main thread itself calls it
 * (_Py_ThreadCanHandlePendingCalls in COMPUTE_EVAL_BREAKER). After a call by another thread, the loop notices only when it next
 * takes the lock. So this sets the loop's flag, as PyThreadState_SetAsyncExc does from any thread. The flag is declared in
 * internal headers, which are those of the Python that this is compiled for. */
#include <patchlevel.h>
#if PY_VERSION_HEX < 0x030D0000
#define Py_BUILD_CORE 1 /* before Python.h, which declares some functions otherwise then */
#endif
#include <Python.h>
#if PY_VERSION_HEX < 0x030D0000
#include "internal/pycore_interp.h"
#endif
#include "system/main_thread.h"
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#define YIELD_NS 2000000 /* so long the main thread waits for who wants the lock */

static sem_t acquired;
static atomic_int waiting; /* threads that want the lock soon */
static atomic_bool crowded;

__attribute__((constructor)) static void make(void) { sem_init(&acquired, 0, 0); }

void remind_main_thread(void) {
#if PY_VERSION_HEX < 0x030D0000
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
}

bool call_on_main_thread(int (*function)(void *)) {
    if (Py_AddPendingCall(function, NULL)) return false;
    remind_main_thread();
    return true;
}

/* CPython asks a running thread for its lock after 5 ms in which the lock was never free. Where a thread lets go of it all the
 * time, it is free for less time than another thread needs to wake up. So the main thread lets go of it, and waits until it was
 * taken. */
static int yield_lock(void *unused) {
    struct timespec until;
    while (sem_trywait(&acquired) == 0) {} /* of a call that came too late for the last time */
    if (!atomic_load(&waiting)) return 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += YIELD_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    PyThreadState *state = PyEval_SaveThread();
    sem_timedwait(&acquired, &until);
    PyEval_RestoreThread(state);
    return 0;
}

void acquire_gil_soon(void *state) {
    atomic_fetch_add(&waiting, 1);
    bool asked = call_on_main_thread(yield_lock);
    PyEval_RestoreThread(state);
    atomic_fetch_sub(&waiting, 1);
    if (asked) sem_post(&acquired);
}

/* The threads that wanted the lock are the parent's. */
void main_thread_after_fork(void) {
    atomic_store(&waiting, 0);
    atomic_store(&crowded, false);
    sem_init(&acquired, 0, 0);
}

void main_thread_yields(bool yields) { atomic_store_explicit(&crowded, yields, memory_order_relaxed); }

void acquire_gil(void *state) {
    if (atomic_load_explicit(&crowded, memory_order_relaxed)) acquire_gil_soon(state);
    else PyEval_RestoreThread(state);
}
