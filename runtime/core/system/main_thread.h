/* Calls on Python's main thread. Apart from core.h, whose names Python's internal headers have as well. */
#ifndef STEPSCOPE_MAIN_THREAD_H
#define STEPSCOPE_MAIN_THREAD_H
#include <stdbool.h>

/* Has the main thread call a function at its next instruction; needs no lock. Returns whether it will be called. */
bool call_on_main_thread(int (*function)(void *));
/* Has the main thread look again for what it is to call: other threads may have cleared the flag. */
void remind_main_thread(void);
/* Takes the interpreter's lock, as PyEval_RestoreThread does with `state`, a thread state of this thread that has let go of it. A
 * main thread that lets go of the lock every few µs, as for each of torch's operators, would else keep all others from it. */
void acquire_gil_soon(void *state);
/* Takes the lock as `acquire_gil_soon` does while rings fill up faster than they are drained; otherwise, as PyEval_RestoreThread. */
void acquire_gil(void *state);
void main_thread_after_fork(void);
/* Whether rings fill up so. */
void main_thread_yields(bool yields);

#endif
