/* Threads that run Python and that the interpreter has not started. */
#include "core.h"

typedef struct {
    PyObject *function, *args;
} Call;

static void *run(void *given) {
    Call call = *(Call *)given;
    free(given);
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *done = PyObject_CallObject(call.function, call.args);
    if (!done) PyErr_WriteUnraisable(call.function);
    Py_XDECREF(done);
    Py_DECREF(call.function);
    Py_DECREF(call.args);
    PyGILState_Release(state);
    return NULL;
}

PyObject *native_thread_py_start(PyObject *self, PyObject *given) {
    PyObject *function, *args;
    if (!PyArg_ParseTuple(given, "OO!", &function, &PyTuple_Type, &args)) return NULL;
    Call *call = malloc(sizeof *call);
    if (!call) return PyErr_NoMemory();
    *call = (Call){Py_NewRef(function), Py_NewRef(args)};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, call) == 0) return pthread_detach(thread), PyLong_FromUnsignedLong((unsigned long)thread);
    Py_DECREF(function);
    Py_DECREF(args);
    free(call);
    return PyErr_Format(PyExc_RuntimeError, "can't start new thread");
}
