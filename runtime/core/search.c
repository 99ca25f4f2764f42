/* Places of times among others that are in order. numpy's search always hands the GIL over, which costs a program that computes in
 * Python more than a small search takes. */
#include "core.h"

/* For each time, how many of the sorted ones are not later. */
static void count_until(const int64_t *sorted, size_t count, const int64_t *times, size_t n, int64_t *to) {
    size_t at = 0; /* where the time before was: neighbours are close together */
    for (size_t i = 0; i < n; i++) {
        int64_t time = times[i];
        if ((at && sorted[at - 1] > time) || (at < count && sorted[at] <= time)) {
            size_t low = 0, high = count;
            while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (sorted[middle] <= time) low = middle + 1;
                else high = middle;
            }
            at = low;
        }
        to[i] = (int64_t)at;
    }
}

PyObject *search_py_count_until(PyObject *self, PyObject *args) {
    Py_buffer sorted, times;
    if (!PyArg_ParseTuple(args, "y*y*:count_until", &sorted, &times)) return NULL;
    PyObject *found = NULL;
    if (sorted.len % (Py_ssize_t)sizeof(int64_t) || times.len % (Py_ssize_t)sizeof(int64_t))
        PyErr_SetString(PyExc_ValueError, "times are 64-bit integers");
    else if ((found = PyBytes_FromStringAndSize(NULL, times.len))) {
        size_t n = (size_t)times.len / sizeof(int64_t);
        PyThreadState *released = release_for(n);
        count_until(sorted.buf, (size_t)sorted.len / sizeof(int64_t), times.buf, n, (int64_t *)PyBytes_AS_STRING(found));
        take_back(released);
    }
    PyBuffer_Release(&sorted);
    PyBuffer_Release(&times);
    return found;
}
