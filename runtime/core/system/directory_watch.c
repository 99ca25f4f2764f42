/* Descriptors that become readable when somebody sets the times of a directory; Python has no function for that. */
#include "core.h"
#include <sys/inotify.h>
#include <unistd.h>

PyObject *directory_watch_py_open(PyObject *self, PyObject *path) {
    const char *name = PyBytes_AsString(path);
    if (!name) return NULL;
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch < 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (inotify_add_watch(watch, name, IN_ATTRIB | IN_ONLYDIR | IN_DONT_FOLLOW) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(watch);
        return NULL;
    }
    return PyLong_FromLong(watch);
}
