/* Places of times among others that are in order. numpy's search always hands the GIL over, which costs a program that computes in
 * Python more than a small search takes. */
#include "core.h"
#include <math.h>
#include <stdlib.h>

/* For each time, how many of the sorted ones are not later. */
static void count_until(const int64_t *sorted, size_t count, const int64_t *times, size_t n, int64_t *to) {
    size_t at = 0; /* where the time before was: neighbours are close together */
    for (size_t i = 0; i < n; i++) {
        int64_t time = times[i];
        if ((at && sorted[at - 1] > time) || (at < count && sorted[at] <= time)) at = times_until(sorted, 1, count, time);
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
        PyThreadState *released = release_gil_for(n);
        count_until(sorted.buf, (size_t)sorted.len / sizeof(int64_t), times.buf, n, (int64_t *)PyBytes_AS_STRING(found));
        reacquire_gil(released);
    }
    PyBuffer_Release(&sorted);
    PyBuffer_Release(&times);
    return found;
}

/* Which reading of each signal belongs to each mark: the latest that came with it, or 1 ns before. Not a number where there is none. */
static void readings_at(const int64_t *readings, size_t n, const int64_t *signals, size_t kinds, const int64_t *marks,
                        size_t count, double most, double *to, int64_t *when) {
    for (size_t i = 0; i < kinds * count; i++) to[i] = NAN, when[i] = INT64_MIN;
    for (size_t i = 0; i < n; i++) {
        int64_t ts = readings[3 * i];
        double value;
        memcpy(&value, &readings[3 * i + 2], sizeof value);
        if (!(fabs(value) < most)) continue;
        size_t mark = ts > INT64_MIN ? times_until(marks, 1, count, ts - 1) : 0, kind = 0;
        if (mark == count || (uint64_t)marks[mark] - (uint64_t)ts > 1) continue;
        while (kind < kinds && signals[kind] != readings[3 * i + 1]) kind++;
        if (kind == kinds || ts < when[kind * count + mark]) continue;
        to[kind * count + mark] = value, when[kind * count + mark] = ts;
    }
}

PyObject *search_py_readings_at(PyObject *module, PyObject *args) {
    Py_buffer readings, signals, marks;
    double most;
    if (!PyArg_ParseTuple(args, "y*y*y*d:readings_at", &readings, &signals, &marks, &most)) return NULL;
    size_t n = (size_t)readings.len / (3 * sizeof(int64_t)), kinds = (size_t)signals.len / sizeof(int64_t);
    size_t count = (size_t)marks.len / sizeof(int64_t);
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(kinds * count * sizeof(double)));
    int64_t *when = malloc(kinds * count * sizeof *when + 1);
    if (found && when) {
        PyThreadState *released = release_gil_for(n);
        readings_at(readings.buf, n, signals.buf, kinds, marks.buf, count, most, (double *)PyBytes_AS_STRING(found), when);
        reacquire_gil(released);
    } else {
        Py_CLEAR(found);
        PyErr_NoMemory();
    }
    free(when);
    PyBuffer_Release(&readings);
    PyBuffer_Release(&signals);
    PyBuffer_Release(&marks);
    return found;
}
