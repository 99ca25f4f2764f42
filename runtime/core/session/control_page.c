/* The control page: what the processes of a session share. Its owner maps a file of the session directory over the
 * page, and so do the processes that join; for all others it is private memory. So a process that joined records
 * exactly while the owner does, and looking whether to record stays one load of a global. */
#include "core.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

Control g_control;
static bool owner, member;
static uint64_t refused_read[REFUSED]; /* by the owner */

static const char magic[8] = "SSCTRL1";

/* The mapping must not reach beyond the page's own memory. */
static size_t page_bytes(void) {
    long size = sysconf(_SC_PAGESIZE);
    return size > 0 && (size_t)size <= sizeof g_control ? (size_t)size : 0;
}

static void wake_samplers(void) { syscall(SYS_futex, &g_control.recording, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static bool map_over(int fd) {
    wake_samplers(); /* they wait for a word of the page that goes */
    int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    return mmap(&g_control, page_bytes(), PROT_READ | PROT_WRITE, flags, fd, 0) != MAP_FAILED;
}

void control_make(const char *directory) {
    size_t size = page_bytes();
    int fd = size ? session_file(directory, "control", O_RDWR | O_CREAT | O_EXCL) : -1;
    memcpy(g_control.magic, magic, sizeof magic);
    owner = fd >= 0 && file_reserve(fd, 0, size) && ftruncate(fd, (off_t)size) == 0 &&
            pwrite(fd, &g_control, size, 0) == (ssize_t)size && map_over(fd);
    if (!owner) {
        count_one(&g_counts.rings_failed); /* nobody can join; this process records all the same */
        if (fd >= 0) session_unlink(directory, "control");
    }
    if (fd >= 0) close(fd);
}

int control_join(const char *session) {
    char found[8];
    struct stat about;
    size_t size = page_bytes();
    int fd = session_file(session, "control", O_RDWR | O_NONBLOCK);
    if (fd < 0) return -1;
    bool good = size && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
                about.st_size >= (off_t)size && pread(fd, found, sizeof found, 0) == (ssize_t)sizeof found &&
                !memcmp(found, magic, sizeof magic);
    if (!good) errno = EINVAL;
    else if (!map_over(fd)) good = false;
    else {
        member = true;
        /* Counted before anything is recorded: whatever becomes of this process, the owner looks for its directory. Counted
         * before `closed` is read: either this process sees that the session is over, or control_detach() sees it. */
        atomic_fetch_add(&g_control.joins, 1);
        if (atomic_load(&g_control.closed)) control_unmap(), good = false, errno = ESTALE;
    }
    int error = errno;
    close(fd);
    errno = error;
    return good ? 0 : -1;
}

void control_unmap(void) {
    memset(refused_read, 0, sizeof refused_read);
    bool shared = owner || member;
    owner = false;
    /* A process that gets no page of its own sees what is recorded elsewhere, and must not switch it. */
    member = shared && !map_over(-1);
    if (!member) atomic_store(&g_control.recording, 0);
}

/* False, and nothing is changed, if a process has joined since `joins` was read. The content of the page stays: the numbers
 * of threads go on. Needs the GIL, so that no thread of Python counts meanwhile. */
bool control_detach(unsigned joins) {
    static Control copy;
    size_t size = page_bytes();
    if (!owner) return true;
    atomic_store(&g_control.closed, 1);
    bool alone = atomic_load(&g_control.joins) == joins;
    if (alone) {
        memcpy(&copy, &g_control, size);
        if (map_over(-1)) {
            memcpy(&g_control, &copy, size);
            owner = false;
        }
    }
    atomic_store(&g_control.closed, 0); /* where no page of its own was to be had, remove_files() closes the shared one */
    return alone;
}

bool control_joined(void) { return member; }

/* Until events are recorded, `control_py_wake_samplers` is called, or so many seconds have passed; in all processes of the session. */
void control_wait_recording(time_t seconds) {
    struct timespec most = {.tv_sec = seconds};
    int now = atomic_load(&g_control.recording);
    if (!(now & RECORD_EVENTS)) syscall(SYS_futex, &g_control.recording, FUTEX_WAIT, now, &most, NULL, 0);
}

PyObject *control_py_wake_samplers(PyObject *self, PyObject *unused) {
    wake_samplers();
    Py_RETURN_NONE;
}

void control_record(int what) {
    if (member) return; /* the owner of the session decides */
    int before = atomic_load(&g_control.recording);
    bool on = what & RECORD_EVENTS, was_on = before & RECORD_EVENTS;
    /* The times are stored before the switch, so that no span is entered in between with an older one. */
    if (on && !was_on) {
        atomic_fetch_add(&g_control.periods, 1);
        atomic_store(&g_control.begun, clock_now());
    } else if (!on && (was_on || !atomic_load(&g_control.stopped))) atomic_store(&g_control.stopped, clock_now());
    atomic_store(&g_control.recording, what);
    if (on && !was_on) wake_samplers();
}

void control_close(void) {
    if (member) return; /* the session goes on without this process */
    atomic_store(&g_control.recording, 0);
    atomic_store(&g_control.closed, 1);
}

PyObject *control_py_recording(PyObject *self, PyObject *unused) {
    return PyLong_FromLong(atomic_load(&g_control.recording) & (RECORD_EVENTS | RECORD_OPERATORS));
}
PyObject *control_py_joins(PyObject *self, PyObject *unused) { return PyLong_FromUnsignedLong(atomic_load(&g_control.joins)); }

void control_refuse(void) { count_one(&g_control.refused[(unsigned)getpid() % REFUSED]); }

PyObject *control_py_read_refused(PyObject *self, PyObject *pid) {
    unsigned long at = PyLong_AsUnsignedLong(pid) % REFUSED;
    if (PyErr_Occurred()) return NULL;
    uint64_t now = atomic_load(&g_control.refused[at]), more = now > refused_read[at] ? now - refused_read[at] : 0;
    refused_read[at] += more;
    return PyLong_FromUnsignedLongLong(more);
}

/* For recovery, if this process is killed. */
PyObject *control_py_set_at_risk(PyObject *self, PyObject *count) {
    unsigned long long events = PyLong_AsUnsignedLongLong(count);
    if (PyErr_Occurred()) return NULL;
    atomic_store(&g_control.at_risk, events);
    Py_RETURN_NONE;
}
