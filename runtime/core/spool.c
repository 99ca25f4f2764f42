/* The spool: a file of the session directory that has what was drained until the journal has it, so that at no moment
 * events are in the memory of the process alone. A frame is written before the rings give its slots free. */
#include "ring.h"
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct {
    char magic[8];
    uint32_t events, args;
} Head; /* layout read by runtime/recovery/session_files.py */

#define NOTHING (-1) /* nothing has to be kept */
#define FULL (-2)    /* it should be, and is not: told to whom recovers */

static int file = NOTHING;

static bool write_whole(struct iovec *parts, int n) {
    while (n) {
        ssize_t done = writev(file, parts, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        for (; n && (size_t)done >= parts->iov_len; parts++, n--) done -= (ssize_t)parts->iov_len;
        if (n) parts->iov_base = (char *)parts->iov_base + done, parts->iov_len -= (size_t)done;
    }
    return true;
}

static void leave_out(const Event *events, size_t count) {
    uint64_t gaps = 0;
    for (size_t i = 0; i < count; i++) gaps += events[i].kind == KIND_GAP;
    atomic_fetch_add(&g_control.unspooled, count - gaps);
}

void spool_write(const Event *events, size_t count, const char *args, size_t args_len) {
    if (file == NOTHING || !count) return;
    if (file < 0) {
        leave_out(events, count);
        return;
    }
    Head head = {"SSSPOOL", (uint32_t)count, (uint32_t)args_len};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)events, count * sizeof *events}, {(void *)args, args_len}};
    off_t before = lseek(file, 0, SEEK_END);
    if (write_whole(parts, 3)) return;
    count_one(&g_counts.spool_failed);
    leave_out(events, count);
    /* Half a frame would make the ones behind it unreadable. */
    if (ftruncate(file, before) < 0) file = FULL;
}

void spool_after_fork(void) { file = NOTHING; }

PyObject *spool_py_use(PyObject *self, PyObject *fd) {
    long value = PyLong_AsLong(fd);
    if (PyErr_Occurred()) return NULL;
    file = (int)value;
    Py_RETURN_NONE;
}

PyObject *spool_py_write(PyObject *self, PyObject *args) {
    Py_buffer events, heap;
    if (!PyArg_ParseTuple(args, "y*y*", &events, &heap)) return NULL;
    bool whole = events.len % (Py_ssize_t)sizeof(Event) == 0 && heap.len <= UINT32_MAX;
    Py_BEGIN_ALLOW_THREADS
    if (whole) spool_write(events.buf, (size_t)events.len / sizeof(Event), heap.buf, (size_t)heap.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&events);
    PyBuffer_Release(&heap);
    if (!whole) return PyErr_Format(PyExc_ValueError, "spool_write() takes whole events and arguments of 4 GiB at most");
    Py_RETURN_NONE;
}

PyObject *spool_py_unspooled(PyObject *self, PyObject *unused) {
    return PyLong_FromUnsignedLongLong(atomic_load(&g_control.unspooled));
}

PyObject *spool_py_tell(PyObject *self, PyObject *args) {
    unsigned long long settled, untold;
    if (!PyArg_ParseTuple(args, "KK", &settled, &untold)) return NULL;
    atomic_store(&g_control.settled, settled);
    atomic_store(&g_control.untold, untold);
    Py_RETURN_NONE;
}
