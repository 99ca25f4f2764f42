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
#include "main_thread.h"

bool call_on_main_thread(int (*function)(void *)) {
    if (Py_AddPendingCall(function, NULL)) return false;
#if PY_VERSION_HEX < 0x030D0000
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
    return true;
}
