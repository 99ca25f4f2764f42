/* How long the threads of processes ran and waited for a processor, from /proc. Each process is read without the interpreter's
 * lock, in one go: Python lets go of the lock for each file and each entry of a directory, and gets it back after 5 ms if
 * another thread runs Python. */
#include "core.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_THREADS 4096
#define MOST_CHILDREN 256

typedef struct { int64_t tid, ran, waited; /* -1 where the system does not say */ } ThreadTimes;

ssize_t read_small(const char *path, char *text, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t got = fd < 0 ? -1 : 1;
    while (got > 0 && len + 1 < room && (got = read(fd, text + len, room - 1 - len)) > 0) len += (size_t)got;
    if (fd >= 0) close(fd);
    text[len] = 0;
    return got < 0 ? -1 : (ssize_t)len;
}

static void read_thread(const char *task, long long tid, ThreadTimes *to) {
    char path[128], text[128];
    long long ran, waited;
    *to = (ThreadTimes){tid, -1, -1};
    snprintf(path, sizeof path, "%s/%lld/schedstat", task, tid);
    if (read_small(path, text, sizeof text) > 0 && sscanf(text, "%lld %lld", &ran, &waited) == 2)
        to->ran = ran, to->waited = waited;
}

static int read_children(const char *task, long long tid, int64_t *children, int count) {
    char path[128], text[4096], *at = text, *end;
    snprintf(path, sizeof path, "%s/%lld/children", task, tid);
    if (read_small(path, text, sizeof text) <= 0) return count;
    for (long long pid; count < MOST_CHILDREN && (pid = strtoll(at, &end, 10), end != at); at = end) children[count++] = pid;
    return count;
}

PyObject *thread_times_py_read(PyObject *self, PyObject *process) {
    long pid = PyLong_AsLong(process);
    if (PyErr_Occurred()) return NULL;
    static ThreadTimes threads[MOST_THREADS]; /* one thread samples */
    int64_t children[MOST_CHILDREN];
    int count = 0, child_count = 0;
    char task[64];
    snprintf(task, sizeof task, "/proc/%ld/task", pid);
    PyThreadState *released = PyEval_SaveThread();
    DIR *directory = opendir(task);
    for (struct dirent *entry; directory && count < MOST_THREADS && (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        long long tid = strtoll(entry->d_name, NULL, 10);
        read_thread(task, tid, &threads[count++]);
        child_count = read_children(task, tid, children, child_count);
    }
    if (directory) closedir(directory);
    acquire_gil_soon(released);
    PyObject *times = PyList_New(0), *pids = PyList_New(0);
    for (int i = 0; times && i < count; i++) {
        PyObject *row = Py_BuildValue("(LLL)", threads[i].tid, threads[i].ran, threads[i].waited);
        if (!row || PyList_Append(times, row) < 0) Py_CLEAR(times);
        Py_XDECREF(row);
    }
    for (int i = 0; pids && i < child_count; i++) {
        PyObject *number = PyLong_FromLongLong(children[i]);
        if (!number || PyList_Append(pids, number) < 0) Py_CLEAR(pids);
        Py_XDECREF(number);
    }
    if (times && pids) return Py_BuildValue("(NN)", times, pids);
    Py_XDECREF(times);
    Py_XDECREF(pids);
    return NULL;
}

PyObject *thread_times_py_read_file(PyObject *self, PyObject *path_object) {
    static char text[1 << 16]; /* one thread samples */
    const char *path = PyUnicode_AsUTF8(path_object);
    if (!path) return NULL;
    PyThreadState *released = PyEval_SaveThread();
    ssize_t len = read_small(path, text, sizeof text);
    acquire_gil_soon(released);
    return PyUnicode_DecodeUTF8(text, len < 0 ? 0 : len, "replace");
}
