/* The beginnings of many files: of a system call for each of which Python takes more time than the system does. */
#include "core.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES 64

typedef struct {
    unsigned long number;
    long long size; /* -1: it cannot be read, or is no regular file */
    ssize_t len;
    char bytes[MOST_BYTES];
} Head;

static void read_head(const char *first, size_t nbytes, int flags, Head *head) {
    char path[PATH_MAX];
    struct stat about;
    head->size = -1;
    if (snprintf(path, sizeof path, "%s.%lu", first, head->number) >= (int)sizeof path) return;
    int file;
    /* Non-blocking, so that opening a FIFO returns. A signal may interrupt it where a program is the file system. */
    do file = open(path, flags | O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (file < 0 && errno == EINTR);
    if (file < 0) return;
    if (!fstat(file, &about) && S_ISREG(about.st_mode)) {
        do head->len = pread(file, head->bytes, nbytes, 0);
        while (head->len < 0 && errno == EINTR);
        if (head->len >= 0) head->size = about.st_size;
    }
    close(file);
}

static PyObject *list_of(const Head *heads, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *one = heads[i].size < 0 ? Py_NewRef(Py_None)
                                          : Py_BuildValue("(Ly#)", heads[i].size, heads[i].bytes, (Py_ssize_t)heads[i].len);
        if (one) PyList_SET_ITEM(list, i, one);
        else Py_CLEAR(list);
    }
    return list;
}

PyObject *file_heads_py_read(PyObject *self, PyObject *args) {
    const char *first;
    PyObject *numbers, *result = NULL;
    Py_ssize_t nbytes;
    int flags;
    if (!PyArg_ParseTuple(args, "yO!ni", &first, &PyList_Type, &numbers, &nbytes, &flags)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(numbers);
    Head *heads = calloc((size_t)count + 1, sizeof *heads);
    for (Py_ssize_t i = 0; heads && i < count; i++) heads[i].number = PyLong_AsUnsignedLong(PyList_GET_ITEM(numbers, i));
    if (!heads) PyErr_NoMemory();
    else if (nbytes < 0 || nbytes > MOST_BYTES)
        PyErr_Format(PyExc_ValueError, "file_heads() reads %d bytes at most", MOST_BYTES);
    else if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++) read_head(first, (size_t)nbytes, flags, &heads[i]);
        Py_END_ALLOW_THREADS
        result = list_of(heads, count);
    }
    free(heads);
    return result;
}
