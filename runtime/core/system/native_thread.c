/* Starts threads without the interpreter, removes profile functions of others, and reads the native stack of this one. CPython
 * 3.12.0 and 3.12.1 start no thread at their exit. */
#include "core.h"
#include <dlfcn.h>
#include <execinfo.h>

typedef struct { PyObject *function, *args; } Call;

static void *run_call(void *given) {
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
    if (pthread_create(&thread, NULL, run_call, call) == 0)
        return pthread_detach(thread), PyLong_FromUnsignedLong((unsigned long)thread);
    Py_DECREF(function);
    Py_DECREF(args);
    free(call);
    return PyErr_Format(PyExc_RuntimeError, "can't start new thread");
}

/* Takes the calling thread's profile function from those of the given threads that have the same one. Only the interpreter
 * can do that, by a function that some versions do not export. Each turn begins anew, as threads may end in between. */
PyObject *native_thread_py_unprofile(PyObject *self, PyObject *idents) {
    int (*set_profile)(PyThreadState *, Py_tracefunc, PyObject *);
    *(void **)&set_profile = dlsym(RTLD_DEFAULT, "_PyEval_SetProfile");
    PyThreadState *here = PyThreadState_Get();
    if (!PyAnySet_Check(idents))
        return PyErr_Format(PyExc_TypeError, "thread idents must be a set, got %.100s", Py_TYPE(idents)->tp_name);
    if (!set_profile) Py_RETURN_FALSE;
    for (PyThreadState *t = here->c_profilefunc ? PyInterpreterState_ThreadHead(PyInterpreterState_Get()) : NULL; t;) {
        int given = 0;
        if (t != here && t->c_profilefunc == here->c_profilefunc) {
            PyObject *ident = PyLong_FromUnsignedLong(t->thread_id);
            given = ident ? PySet_Contains(idents, ident) : -1;
            Py_XDECREF(ident);
            if (given < 0 || (given && set_profile(t, NULL, NULL) < 0)) return NULL;
        }
        t = given ? PyInterpreterState_ThreadHead(PyInterpreterState_Get()) : PyThreadState_Next(t);
    }
    Py_RETURN_TRUE;
}

#define MAX_FRAMES 1024 /* of a native stack that is looked at, from the innermost */

/* Whether a function of a library whose file name has `part` in it is on the native stack of the calling thread. */
PyObject *native_thread_py_called_by(PyObject *self, PyObject *given) {
    const char *part = PyUnicode_AsUTF8(given);
    if (!part) return NULL;
    void *frames[MAX_FRAMES];
    int depth = backtrace(frames, MAX_FRAMES);
    for (int i = 0; i < depth; i++) {
        Dl_info where;
        if (!dladdr(frames[i], &where) || !where.dli_fname) continue;
        const char *file = strrchr(where.dli_fname, '/');
        if (strstr(file ? file : where.dli_fname, part)) Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}
