/* Calls on Python's main thread. Apart from core.h, whose names Python's internal headers have as well. */
#ifndef STEPSCOPE_MAIN_THREAD_H
#define STEPSCOPE_MAIN_THREAD_H
#include <stdbool.h>

/* Has the main thread call a function at its next instruction; needs no lock. Returns whether it will be called. */
bool call_on_main_thread(int (*function)(void *));

#endif
