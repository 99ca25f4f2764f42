/* The spool: a file of the session directory that has what was drained until the journal has it, so that at no moment
 * events are in the memory of the process alone. A frame is written before the rings give its slots free. */
#include "ring.h"
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct { char magic[8]; uint32_t events, args; } Head; /* layout read by runtime/recovery/session_files.py */

static int file = -1;

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

void spool_write(const Event *events, size_t count, const char *args, size_t args_len) {
    if (file < 0 || !count) return;
    Head head = {"SSSPOOL", (uint32_t)count, (uint32_t)args_len};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)events, count * sizeof *events}, {(void *)args, args_len}};
    off_t before = lseek(file, 0, SEEK_END);
    if (write_whole(parts, 3)) return;
    count_one(&g_counts.spool_failed);
    /* Half a frame would make the ones behind it unreadable. */
    if (ftruncate(file, before) < 0) file = -1;
}

void spool_after_fork(void) { file = -1; }

PyObject *spool_py_use(PyObject *self, PyObject *fd) {
    long value = PyLong_AsLong(fd);
    if (PyErr_Occurred()) return NULL;
    file = (int)value;
    Py_RETURN_NONE;
}
